"""Text that follows a JSON schema, a regular expression or a grammar, with the model that ships with the package."""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Iterator
from typing import Any

import bitnet_core
import pytest
from bitnet_core.engine.request.reasoning import Reasoning, ReasoningLimit
from bitnet_core.schema_keywords import relaxed
from bitnet_core.structured import MAX_GRAMMAR, Grammar, UncompiledConstraint, compiled, grammar_of, json_grammar
from bitnet_hal.errors import UsageError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model() -> Iterator[bitnet_core.Model]:
    with bitnet_core.load(None, "numpy") as loaded:
        yield loaded


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "seed": 1}, {"temperature": 1.0, "top_k": 5, "seed": 2}])
def test_a_schema_is_followed(model: bitnet_core.Model, options: dict[str, Any]) -> None:
    result = model.generate("Once", max_tokens=80, response_format=schema_format(SCHEMA), **options)
    found = json.loads(result.text)
    assert sorted(found) == ["age", "name", "tags"]
    assert len(found["name"]) <= 12
    assert 0 <= found["age"] <= 120
    assert set(found["tags"]) <= {"red", "blue"}
    assert result.finish_reason == "stop"


def test_a_regular_expression_and_a_grammar_are_followed(model: bitnet_core.Model) -> None:
    expression = r"[0-9]{3}-[a-c]{2}"
    assert re.fullmatch(expression, model.generate("A", response_format={"type": "regex", "regex": expression}).text)
    lark = 'start: ("yes" | "no") " " NUMBER\nNUMBER: /[0-9]{1,2}/'
    text = model.generate("A", response_format={"type": "grammar", "grammar": lark}).text
    assert re.fullmatch(r"(yes|no) \d{1,2}", text)


def test_any_object_is_an_object(model: bitnet_core.Model) -> None:
    stream = model.chat(
        [{"role": "user", "content": "Hello"}], max_tokens=24, stream=True, response_format={"type": "json_object"}
    )
    text = "".join(chunk.text for chunk in stream)
    assert text.startswith("{")
    assert "\n" not in text


def test_plain_text_is_not_constrained(model: bitnet_core.Model) -> None:
    plain = model.generate("Once", max_tokens=8)
    assert model.generate("Once", max_tokens=8, response_format={"type": "text"}).text == plain.text


def test_the_neighbours_of_a_constrained_text_are_not(model: bitnet_core.Model) -> None:
    expected = model.generate("Once", max_tokens=20).text
    plain = model.generate("Once", max_tokens=20, stream=True)
    bound = model.generate("Once", max_tokens=20, stream=True, response_format=schema_format(SCHEMA))
    assert "".join(chunk.text for chunk in plain) == expected
    assert "".join(chunk.text for chunk in bound).startswith('{"name": "')


@pytest.mark.parametrize(
    "response_format",
    [
        {},
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {}},
        {"type": "regex"},
        schema_format("text"),
        schema_format({"type": "nosuch"}),
        schema_format({"$ref": "https://example.org/schema.json"}),
        schema_format({"enum": ["x" * MAX_GRAMMAR]}),
        {"type": "regex", "regex": "(("},
        {"type": "grammar", "grammar": "start: nowhere"},
        schema_format({"const": object()}),
        "json_object",
    ],
)
def test_formats_that_cannot_be(model: bitnet_core.Model, response_format: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"response_format|schema|grammar"):
        model.generate("Once", response_format=response_format)


def test_a_grammar_that_cannot_begin_is_refused_before_any_step(model: bitnet_core.Model) -> None:
    grammar = grammar_of(schema_format({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}))
    assert grammar is not None
    with pytest.raises(UsageError, match="cannot be used"):
        model.grammars.constraint(grammar)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"allOf": [{"allOf": [{"$ref": "#/allOf/0"}]}]},
        {
            "items": {"$ref": "#/$defs/A"},
            "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"allOf": [{"$ref": "#/$defs/A"}]}},
        },
    ],
)
def test_a_reference_that_leads_to_itself_is_refused(schema: Any) -> None:
    with pytest.raises(UsageError, match="leads to itself"):
        json_grammar(schema)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("date-time", "2026-11-26T22:25:{}Z"), ("date-time", "2026-11-26T22:25:{}.5+01:00"), ("time", "22:25:{}Z")],
)
def test_times_end_before_second_60(model: bitnet_core.Model, kind: str, text: str) -> None:
    grammar = json_grammar({"type": "string", "format": kind})
    for second, fits in (("59", True), ("00", True), ("60", False)):
        constraint = model.grammars.constraint(grammar)
        seen = True
        for token in model.tokenizer.encode(f'"{text.format(second)}"', add_bos=False):
            seen = seen and bool(int(constraint.mask().view("uint32")[token // 32]) >> token % 32 & 1)
            if seen:
                constraint.accept(token)
        assert seen == fits


def test_recursion_through_values_is_allowed() -> None:
    leaf = {"type": "object", "properties": {"next": {"$ref": "#"}, "a": {"$ref": "#/$defs/A"}}}
    assert json_grammar(
        {**leaf, "$defs": {"A": {"allOf": [{"$ref": "#/$defs/B"}]}, "B": {"items": {"$ref": "#/$defs/A"}}}}
    )


def test_nesting_is_bounded() -> None:
    schema: Any = {}
    for _ in range(10_000):
        schema = {"items": schema}
    with pytest.raises(UsageError, match="deep"):
        grammar_of(schema_format(schema))


def test_the_library_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with bitnet_core.load(None, "numpy") as loaded, pytest.raises(UsageError, match="pip install llguidance"):
        loaded.generate("Once", response_format={"type": "json_object"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        False,
    ],
)
def test_a_grammar_that_cannot_continue_is_refused_before_any_step(model: bitnet_core.Model, schema: Any) -> None:
    for _ in range(2):  # the second time from the kept refusals
        with pytest.raises(UsageError, match="cannot be used"):
            model.grammars.constraint(json_grammar(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"enum": [1]}, "minItems": 2000, "maxItems": 2001},  # masks that take long
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(600)}},  # fails after its brace
        {"type": "object", "patternProperties": {"^[ab]$": {}}, "minProperties": 2},  # a name may repeat
        {"type": "object", "minProperties": 3, "required": ["a"]},
    ],
)
def test_a_schema_that_costs_too_much_is_refused_wherever_it_stands(schema: Any) -> None:
    inner = {"properties": {"a": {"type": "string"}, "b": {"anyOf": [{"type": "null"}, schema]}}, "type": "object"}
    for whole in (schema, inner):
        with pytest.raises(UsageError, match="cannot be used"):
            json_grammar(whole)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object", "patternProperties": {"^[ab]$": {}}, "minProperties": 1},
        {"type": "object", "additionalProperties": {"enum": [1]}, "minProperties": 1},
        {"type": "array", "items": {"enum": [1]}, "uniqueItems": False, "maxItems": 1000},
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"enum": [1]}},
        {"type": "string", "format": "password"},
        {"type": "array", "minContains": 2},
        {"unevaluatedProperties": True, "dependentRequired": {}, "$schema": "https://example.com/draft"},
        {"type": "object", "properties": {"a": {"not": {}}, "b": {"not": False}, "c": {"if": {"type": "null"}}}},
    ],
)
def test_keywords_that_change_nothing_are_no_obstacle(model: bitnet_core.Model, schema: Any) -> None:
    model.grammars.constraint(json_grammar(schema))


def test_a_relaxed_schema_keeps_what_is_supported() -> None:
    part = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "contains": {"const": 1}}
    schema = {
        "properties": {"a": part, "uniqueItems": {"pattern": "(?=x)y", "maxLength": 3}},
        "oneOf": [{"required": ["a"]}, {"required": ["uniqueItems"]}],
        "default": {"uniqueItems": True},
    }
    found, dropped = relaxed(schema)
    assert found == {
        "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "uniqueItems": {"maxLength": 3}},
        "anyOf": [{"required": ["a"]}, {"required": ["uniqueItems"]}],
        "default": {"uniqueItems": True},
    }
    assert dropped == ["uniqueItems", "contains", "pattern", "oneOf"]


@pytest.mark.parametrize(
    "schema",
    [
        {"const": -(2**63)},
        {"enum": [1, 1 - 2**63]},
        {"properties": {"a": {"items": {"const": {"b": [2**63]}}}}},
    ],
)
def test_integers_that_would_end_the_process_are_refused(schema: dict[str, Any]) -> None:
    for form in (schema_format(schema), within_lark(schema)):
        with pytest.raises(UsageError, match="an integer beyond 2\\^53"):
            grammar_of(form)


def within_lark(schema: Any) -> dict[str, Any]:
    """A grammar whose text after a word is JSON."""
    return {"type": "grammar", "grammar": f'start: "a" word\nword: %json  {json.dumps(schema)}\n'}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 2**24},
        {"type": "integer", "multipleOf": 10**400 // 3},
        {"properties": {"a": {"type": "number", "multipleOf": 1.5485863e-05}}},
        {"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]},
        {"allOf": [{"type": "integer", "multipleOf": 1e-9}, {"multipleOf": 100}]},
    ],
)
def test_divisors_that_would_take_minutes_are_refused(schema: dict[str, Any]) -> None:
    for form in (schema_format(schema), within_lark(schema)):
        with pytest.raises(UsageError, match="multipleOf leads to more than 50000 remainders"):
            grammar_of(form)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},
        {"allOf": [{"type": "integer", "minimum": -1e300}, {"exclusiveMaximum": -1e30}]},
    ],
)
def test_bounds_that_would_end_the_process_are_refused(schema: dict[str, Any]) -> None:
    for form in (schema_format(schema), within_lark(schema)):
        with pytest.raises(UsageError, match="aximum is below -2\\^53"):
            grammar_of(form)


def test_bounds_of_64_bits_are_enforced(model: bitnet_core.Model) -> None:
    """Many generators of schemas write the bounds of their types."""
    for low, high in ((-(2**63), 2**63 - 1), (0, 2**64 - 1)):
        schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": low, "maximum": high}}}
        model.grammars.constraint(json_grammar(schema))


PATTERNS = [{"type": "string", "pattern": f"a{{{count}}}"} for count in range(60)]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": PATTERNS},
        {"allOf": [{"anyOf": [part]} for part in PATTERNS]},
        {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{at}": {"allOf": [part, {"$ref": f"#/$defs/d{at + 1}"}]} for at, part in enumerate(PATTERNS)}
            | {"d60": {}},
        },
    ],
)
def test_a_text_that_has_to_match_many_patterns_is_refused(schema: dict[str, Any]) -> None:
    """The time doubles with each: 24 took more than a minute."""
    with pytest.raises(UsageError, match="more than 8 patterns"):
        grammar_of(schema_format(schema))


def test_unions_of_many_patterns_are_enforced(model: bitnet_core.Model) -> None:
    parts = {f"d{at}": {"type": "string", "pattern": f"^{at}"} for at in range(40)}
    union = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in parts]}
    model.grammars.constraint(json_grammar({"allOf": [union], "$defs": parts}))


def test_divisors_that_take_little_time_are_enforced(model: bitnet_core.Model) -> None:
    prices = {"properties": {"a": {"type": "integer", "multipleOf": 25}, "b": {"type": "number", "multipleOf": 0.01}}}
    for schema in (prices, {"multipleOf": 36_000}, {"multipleOf": 1e-7}):
        for form in (schema_format(schema), within_lark(schema)):
            grammar = grammar_of(form)
            assert grammar is not None
            model.grammars.constraint(grammar)


def test_a_grammar_whose_schema_is_not_json_is_refused() -> None:
    for text in ("{", "[" * 100_000, "", "# a comment\n{}"):
        with pytest.raises(UsageError, match="no JSON schema follows %json"):
            grammar_of({"type": "grammar", "grammar": f"start: %json {text}"})


CHAIN = "".join(f'r{at}: "a" r{at + 1}\n' for at in range(4000)) + 'r4000: "a"\n'
REFERENCES = {f"d{at}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{at + 1}"}}} for at in range(1000)}


@pytest.mark.parametrize(
    ("response_format", "words"),
    [
        ({"type": "grammar", "grammar": f"start: r0\n{CHAIN}"}, "4002 rules"),
        ({"type": "grammar", "grammar": f"root ::= r0\n{CHAIN.replace(':', ' ::=')}"}, "4002 rules"),
        (schema_format({"$ref": "#/$defs/d0", "$defs": REFERENCES}), "references lead 4001 levels deep"),
        (schema_format({"type": "string", "pattern": "a?" * 20000}), "20000 repetitions"),
        ({"type": "regex", "regex": "a?" * 20000}, "20000 repetitions"),
        (
            {"type": "grammar", "grammar": "start: %json " + json.dumps({"anyOf": [{"$ref": "#"}] * 26})},
            "26 references",
        ),
    ],
)
def test_grammars_that_would_overflow_the_stack_or_take_minutes_are_refused(
    model: bitnet_core.Model, response_format: dict[str, Any], words: str
) -> None:
    """The chains ended the process; the repetitions held a thread for more than 20 s."""
    with pytest.raises(UsageError, match=words):
        model.generate("x", max_tokens=1, response_format=response_format)


def test_a_constraint_in_another_process_begins_anew(model: bitnet_core.Model) -> None:
    """It travels as its grammar, also inside the limit on a model's reasoning."""
    digits = Grammar("regex", "[0-9]{3}")
    inner = model.grammars.constraint(digits)
    first = inner.mask().copy()
    limit = ReasoningLimit(Reasoning(1, 2, [5]), 3, [2], model.config.vocab, model.grammars.constraint(digits))
    inner.accept(model.tokenizer.encode("1", add_bos=False)[-1])
    for constraint in (inner, limit):
        sent = pickle.loads(pickle.dumps(constraint))  # noqa: S301 - our own
        again = compiled(sent, model.grammars.constraint)
        assert not isinstance(again, UncompiledConstraint)
        mask = again.mask() if constraint is inner else again.inner.mask()  # type: ignore[attr-defined]  # of the limit
        assert (mask == first).all()
