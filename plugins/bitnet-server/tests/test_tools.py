"""Tools: grammars of calls, relaxed parameters, the parser, and their description for the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import bitnet_core
import msgspec
import pytest
from bitnet_core.structured import grammar_of
from bitnet_core.tokenizer.chat import ChatTemplate
from bitnet_server import enforced_tools
from bitnet_server.chat import chat_tokens
from bitnet_server.enforced_tools import enforceable
from bitnet_server.errors import ApiError
from bitnet_server.schema import ChatRequest
from bitnet_server.tool_calls import Parser, to_tool_calls
from bitnet_server.tool_prompt import trained, with_tool_prompt
from bitnet_server.tools import ToolChoice

LEAF = {"type": "object", "properties": {"s": {"enum": ["a", "b"]}}, "required": ["s"], "additionalProperties": False}
OTHER = {"enum": [7]}


@pytest.fixture(scope="module")
def model() -> Iterator[bitnet_core.Model]:
    with bitnet_core.load(None, "numpy") as loaded:
        yield loaded


def tool(parameters: Any, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def chosen(tools: list[dict[str, Any]], choice: Any = "required", **more: Any) -> ToolChoice:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice, **more}
    return ToolChoice.of(msgspec.json.decode(json.dumps(body), type=ChatRequest))


def follows(model: bitnet_core.Model, choice: ToolChoice, text: str, answer: Any = None) -> bool:
    """Return whether the text is a complete answer."""
    made = enforceable(choice, model.grammars).grammar(answer)
    assert made is not None
    constraint = model.grammars.constraint(made)
    (eos, *_) = model.tokenizer.eos_ids
    for token in [*model.tokenizer.encode(text, add_bos=False), eos]:
        if not int(constraint.mask().view("uint32")[token // 32]) >> token % 32 & 1:
            return False
        constraint.accept(token)
    return True


def call(arguments: Any, name: str = "f") -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize("place", ["$defs", "definitions"])
@pytest.mark.parametrize(
    "more", [{}, {"$id": "https://example.com/q"}, {"$schema": "http://json-schema.org/draft-07/schema#"}]
)
def test_references_stay_within_their_tool(model: bitnet_core.Model, place: str, more: Any) -> None:
    def parameters(leaf: Any) -> dict[str, Any]:
        inner = {"type": "object", "properties": {"q": {"$ref": f"#/{place}/Q"}, "c": {"$ref": "#"}}, "required": ["q"]}
        return {**inner, place: {"Q": leaf}, **more}

    choice = chosen([tool(parameters(LEAF)), tool(parameters(OTHER), "g")])
    assert follows(model, choice, call({"q": {"s": "a"}, "c": {"q": {"s": "b"}}}))
    assert follows(model, choice, call({"q": 7}, "g"))
    assert not follows(model, choice, call({"q": 7}))
    assert not follows(model, choice, call({"q": {"s": "a"}}, "g"))
    assert not follows(model, choice, call({"q": {"s": "a"}, "c": {"name": "f"}}))


def test_parameters_that_are_a_reference(model: bitnet_core.Model) -> None:
    parameters = {
        "$ref": "#/definitions/M",
        "definitions": {"M": LEAF},
        "$schema": "http://json-schema.org/draft-07/schema#",
    }
    assert follows(model, chosen([tool(parameters)]), call({"s": "a"}))
    assert not follows(model, chosen([tool(parameters)]), call({"s": "c"}))


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": {"enum": [1]}}, "required": ["a"]},
        {"description": "nothing", "properties": {"a": {"enum": [1]}}},
        {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"a": {"enum": [1]}}}]},
        {"type": ["object", "null"], "properties": {"a": {"enum": [1]}}},
        {"enum": [{"a": 1}, 5]},
        {"type": "string"},
    ],
)
def test_arguments_are_objects(model: bitnet_core.Model, parameters: Any) -> None:
    assert follows(model, chosen([tool(parameters)]), call({"a": 1}))
    for other in (5, "x", None, [1]):
        assert not follows(model, chosen([tool(parameters)]), call(other))


@pytest.mark.parametrize(
    "nothing",
    [
        {"not": {}},
        {"not": True},
        {"type": "object", "not": {}},
        {"type": "array", "properties": {}},
        {"$ref": "https://example.com/elsewhere", "properties": {}},
    ],
)
def test_parameters_that_allow_nothing_are_not_enforced(model: bitnet_core.Model, nothing: Any) -> None:
    assert enforceable(chosen([tool(nothing)]), model.grammars).relaxed == ("tools[0] (f): all parameters",)
    assert follows(model, chosen([tool(nothing)]), call({"a": 1}))
    with pytest.raises(ApiError, match=r"tools\[0\] \(f\) is strict"):
        enforceable(chosen([tool(nothing, strict=True)]), model.grammars)


UNSUPPORTED = [
    {"type": "array", "items": {"enum": [1]}, "uniqueItems": True},
    {"type": "array", "contains": {"const": 1}},
    {"not": {"const": 1}},
    {"type": "string", "pattern": "^(?!x)y"},
    {"$ref": "https://example.com/elsewhere"},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]},
    {"type": "no such type"},
    {"type": "array", "items": {"enum": [1]}, "minItems": 3000},
    {"$ref": "#/properties/v"},
    {"allOf": [{"$ref": "#/properties/v"}, {"type": "integer"}]},
]


@pytest.mark.parametrize("part", UNSUPPORTED)
def test_one_unsupported_keyword_fails_no_request(model: bitnet_core.Model, part: Any) -> None:
    parameters = {"type": "object", "properties": {"v": part, "k": {"enum": [2]}}, "required": ["k"]}
    tools = [tool(LEAF, "good"), tool(parameters, "bad")]
    for choice in ("auto", "required"):
        made = enforceable(chosen(tools, choice), model.grammars)
        assert len(made.relaxed) >= 1
        assert all(note.startswith("tools[1] (bad)") for note in made.relaxed)
    assert follows(model, made, call({"s": "a"}, "good"))
    assert not follows(model, made, call({"s": "c"}, "good"))
    assert follows(model, made, call({"k": 2}, "bad"))
    assert not follows(model, made, call({"k": 3}, "bad"))
    with pytest.raises(ApiError, match=r"tools\[1\] \(bad\)") as refused:
        enforceable(chosen([tools[0], tool(parameters, "bad", strict=True)]), model.grammars)
    assert refused.value.param == "tools"
    assert enforceable(chosen([tool(LEAF, "good", strict=True), tools[1]]), model.grammars).relaxed


@pytest.mark.parametrize("faults", [1, 60])
def test_the_search_for_faults_is_bounded(
    model: bitnet_core.Model, monkeypatch: pytest.MonkeyPatch, faults: int
) -> None:
    """Tools of 60 properties each, one of them faulty or all."""
    compiled: list[Any] = []
    problem = enforced_tools._tool_problem
    monkeypatch.setattr(enforced_tools, "_tool_problem", lambda *given: compiled.append(given) or problem(*given))
    properties = {f"p{at}": {"pattern": "("} if at < faults else {"enum": [1]} for at in range(60)}
    tools = [tool({"type": "object", "properties": properties}, f"f{at}") for at in range(40)]
    made = enforceable(chosen(tools), model.grammars)
    assert made.relaxed[0] == "tools[0] (f0): p0"
    assert len(compiled) < 600
    assert follows(model, made, call({"p59": 1}, "f0"))
    if faults == 1:
        assert made.relaxed[1] == "tools[1] (f1): p0"
        assert not follows(model, made, call({"p59": 2}, "f0"))


def test_tools_that_are_too_large_together_are_enforced_in_part(model: bitnet_core.Model) -> None:
    """The limit on one grammar makes the largest parameters any object, and the rest is enforced."""
    large = {"type": "object", "properties": {"v": {"enum": [f"the value {at:020}" for at in range(2600)]}}}
    tools = [*(tool(large, f"f{at}") for at in range(3)), tool(LEAF, "good")]
    made = enforceable(chosen(tools), model.grammars)
    assert made.relaxed == ("tools[0] (f0): all parameters",)
    assert follows(model, made, call({"s": "a"}, "good"))
    assert not follows(model, made, call({"s": "c"}, "good"))
    strict = [tool(large, f"f{at}", strict=True) for at in range(3)]
    with pytest.raises(ApiError, match="the tools together"):
        enforceable(chosen(strict), model.grammars)


def test_a_named_choice_without_a_name_is_refused() -> None:
    with pytest.raises(ApiError, match="tool_choice names ''"):
        chosen([tool(LEAF)], {"type": "function", "function": {"name": ""}})


def test_several_calls_are_made_if_they_may_be(model: bitnet_core.Model) -> None:
    two = call({"s": "a"}) + "\n" + call({"s": "b"})
    tagged = "<tool_call>\n" + call({"s": "a"}) + "\n</tool_call>"
    for choice in ("auto", "required"):
        one, several = (chosen([tool(LEAF)], choice, parallel_tool_calls=may) for may in (False, True))
        assert follows(model, several, two)
        assert not follows(model, one, two)
        assert follows(model, several, tagged + "\n" + tagged)
        assert not follows(model, one, tagged + "\n" + tagged)
        assert follows(model, one, tagged)
    assert follows(model, chosen([tool(LEAF)], "auto"), "I look. " + tagged)
    assert follows(model, chosen([tool(LEAF)], "auto"), "Just { text")
    assert not follows(model, chosen([tool(LEAF)], "auto"), "I look. <tool_call>\n{}\n</tool_call>")


def test_tools_beside_a_response_format(model: bitnet_core.Model) -> None:
    answer = grammar_of({"type": "json_schema", "json_schema": {"schema": {**LEAF, "properties": {"s": OTHER}}}})
    choice = chosen([tool(LEAF)], "auto")
    assert follows(model, choice, call({"s": "a"}), answer)
    assert follows(model, choice, '{"s": 7}', answer)
    assert not follows(model, choice, "text", answer)
    assert not follows(model, chosen([tool(LEAF)]), '{"s": 7}', answer)
    digits = grammar_of({"type": "regex", "regex": "a/[0-9]{2}"})
    assert follows(model, choice, "a/42", digits)
    with pytest.raises(ApiError, match="exclude"):
        choice.grammar(grammar_of({"type": "grammar", "grammar": 'start: "a"'}))


def test_schemas_of_megabytes_are_not_examined(model: bitnet_core.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would take seconds; what is small is enforced as ever."""
    large = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(20_000)}}
    tools = [tool(large, "a"), tool(LEAF, "b"), tool(large, "c")]
    examined: list[int] = []
    real = enforced_tools._tool_problem
    monkeypatch.setattr(
        enforced_tools,
        "_tool_problem",
        lambda one, grammars: (examined.append(len(str(one.schema))), real(one, grammars))[1],
    )
    choice = enforceable(chosen(tools), model.grammars)
    assert choice.relaxed == ("tools[0] (a): all parameters", "tools[2] (c): all parameters")
    assert max(examined) < 1000
    assert follows(model, chosen(tools), call({"s": "a"}, "b"))
    assert not follows(model, chosen(tools), call({"s": "q"}, "b"))
    with pytest.raises(ApiError, match="strict tools"):
        enforceable(chosen([tool(large, "a", strict=True)]), model.grammars)


def test_allowed_tools() -> None:
    tools = [tool(LEAF), tool(LEAF, "g"), tool(LEAF, "h")]
    listed = [{"type": "function", "function": {"name": "g"}}, {"type": "function", "name": "h"}]
    for mode in ("auto", "required"):
        choice = chosen(tools, {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}})
        assert ([one.name for one in choice.functions], choice.must) == (["g", "h"], mode == "required")
    for wrong in (
        {"mode": "auto", "tools": []},
        {"mode": "x", "tools": listed},
        {"mode": "auto", "tools": [{"name": "z"}]},
    ):
        with pytest.raises(ApiError) as refused:
            chosen(tools, {"type": "allowed_tools", "allowed_tools": wrong})
        assert refused.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("given", "names", "must"),
    [
        ({"type": "function", "name": "g"}, ["g"], True),
        ({"name": "g"}, ["g"], True),
        ({"type": "tool", "name": "g"}, ["g"], True),
        ({"type": "auto"}, ["f", "g"], False),
        ({"type": "any"}, ["f", "g"], True),
        ("any", ["f", "g"], True),
        ({"type": "required"}, ["f", "g"], True),
        ({"type": "none"}, [], False),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}, ["g"], True),
    ],
)
def test_flat_forms_mean_what_their_clients_mean(given: Any, names: list[str], must: bool) -> None:
    flat = {"type": "function", "name": "g", "description": "Does it.", "parameters": LEAF, "strict": True}
    choice = chosen([tool(LEAF), flat], given, parallel_tool_calls=True)
    assert ([one.name for one in choice.functions], choice.must) == (names, must)
    assert choice.parallel == (names != ["g"] or given.get("type") == "allowed_tools")
    if "g" in names:
        function = choice.functions[-1]
        assert (function.description, function.parameters, function.strict) == ("Does it.", LEAF, True)


@pytest.mark.parametrize(
    "given", [{"type": "function"}, {"type": "web_search", "name": "f"}, {"type": "allowed_tools"}]
)
def test_a_choice_of_nothing_is_refused(given: Any) -> None:
    with pytest.raises(ApiError) as refused:
        chosen([tool(LEAF)], given)
    assert refused.value.param == "tool_choice"


def parsed(
    choice: ToolChoice, text: str, size: int, *, answers: bool = False
) -> tuple[str, list[tuple[str, str]], str]:
    parser, shown, calls = Parser(choice, answers=answers), "", []
    pieces = [text[at : at + size] for at in range(0, len(text), size)] or [""]
    for at, piece in enumerate(pieces):
        part = parser.push(piece, last=at == len(pieces) - 1)
        shown += part.text
        calls += part.calls
    made = [one["function"] for one in to_tool_calls(calls)]
    return shown, [(one["name"], one["arguments"]) for one in made], parser.reason("stop")


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_calls_are_told_from_text(size: int) -> None:
    choice = chosen([tool(LEAF)], "auto")
    deep = '{"a": {"b": "}\\"]{"}, "c": [{}]}'
    one = f'{{"name": "f", "arguments": {deep}}}'
    tagged = f"<tool_call>\n{one}\n</tool_call>"
    assert parsed(choice, one, size) == ("", [("f", deep)], "tool_calls")
    assert parsed(choice, f"{one}\n{one}", size) == ("", [("f", deep)] * 2, "tool_calls")
    assert parsed(choice, f"{tagged}\n{tagged}", size) == ("", [("f", deep)] * 2, "tool_calls")
    assert parsed(choice, f"\n\n{one}", size) == ("", [("f", deep)], "tool_calls")
    assert parsed(choice, f"I < look {tagged}", size) == ("I < look ", [("f", deep)], "tool_calls")
    assert parsed(choice, "a <tool_cal", size) == ("a <tool_cal", [], "stop")
    assert parsed(choice, "", size) == ("", [], "stop")
    assert parsed(ToolChoice(), one, size) == (one, [], "stop")
    assert parsed(choice, '{"s": 7}', size, answers=True) == ('{"s": 7}', [], "stop")
    assert parsed(choice, one, size, answers=True) == ("", [("f", deep)], "tool_calls")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_that_are_cut_keep_their_braces(size: int) -> None:
    choice = chosen([tool(LEAF)])
    assert parsed(choice, '{"name": "f", "arguments": {"a": {"b": 1}}', size)[1] == [("f", '{"a": {"b": 1}}')]
    assert parsed(choice, '{"name": "f", "arguments": {"a": {"b": 1}', size)[1] == [("f", '{"a": {"b": 1}')]
    assert parsed(choice, '{"name', size) == ("", [], "stop")
    assert parsed(choice, '\n<tool_call>\n{"name": "', size, answers=True)[0].strip() == ""


def test_the_description_fits_half_of_the_context(model: bitnet_core.Model) -> None:
    properties = {f"p{i}": {"type": "string", "description": "A long description of it. " * 4} for i in range(6)}
    tools = [
        tool({"type": "object", "properties": properties, "required": ["p0"]}, f"t{i}", description="It does it. " * 20)
        for i in range(12)
    ]
    messages = [{"role": "user", "content": "Hello"}]
    few = with_tool_prompt(model, messages, chosen(tools[:1]))[0]["content"]
    assert "A long description" in few
    many = with_tool_prompt(model, messages, chosen(tools))[0]["content"]
    assert all(f"t{i}" in many for i in range(12))
    assert len(model.tokenizer.encode(many, add_bos=False)) <= model.engine.max_model_len // 2


TEMPLATE = (
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% for message in messages %}{{ message.role }}: "
    "{{ message.content }}{% for call in message.tool_calls %}<tool_call>\n{{ call.function.name }} "
    "{{ call.function.arguments.s }}\n</tool_call>{% endfor %}\n{% endfor %}assistant:"
)


@pytest.mark.parametrize("arguments", ['{"s": "a"}', {"s": "a"}])
def test_a_template_that_renders_tools_gets_them(
    model: bitnet_core.Model, monkeypatch: pytest.MonkeyPatch, arguments: Any
) -> None:
    assert not trained(model)
    monkeypatch.setattr(model.tokenizer, "chat_template", TEMPLATE)
    monkeypatch.setattr(model, "_template", ChatTemplate(model.tokenizer))
    assert trained(model)
    messages = [
        {"role": "user", "content": "Call it"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
        {"role": "tool", "content": "done", "tool_call_id": "x"},
    ]
    body = {"messages": messages, "tools": [tool(LEAF)]}
    request = msgspec.json.decode(json.dumps(body), type=ChatRequest)
    choice = ToolChoice.of(request, trained=True)
    assert choice.parallel
    text = model.tokenizer.decode(chat_tokens(model, request.messages, choice, {}))
    assert '{"type": "function", "function": {"name": "f", ' in text
    assert "<tool_call>\nf a\n</tool_call>" in text
    assert "You can call" not in text
    assert text.endswith("tool: doneassistant:")
