"""Chats and completions: answers, events, fields."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import bitnet_core
import httpx
import pytest
from bitnet_core import Model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]


def test_models_are_listed(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert [entry["id"] for entry in listed["data"]] == ["stories", "org/alias"]
    assert listed["data"][0]["meta"]["n_ctx"] == 1024
    assert client.get("/v1/models/org/alias").json()["id"] == "org/alias"
    assert client.get("/models").json() == listed
    missing = client.get("/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_a_whole_chat(chat: Any) -> None:
    answer = chat()
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", answer["id"])
    assert (answer["object"], answer["model"]) == ("chat.completion", "stories")
    assert re.fullmatch(r"bitnet-[\d.]+-numpy", answer["system_fingerprint"])
    (choice,) = answer["choices"]
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["refusal"] is None
    assert len(choice["message"]["content"]) > 10
    usage = answer["usage"]
    assert (usage["completion_tokens"], usage["total_tokens"]) == (8, usage["prompt_tokens"] + 8)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert answer["timings"]["predicted_n"] == 8


def test_events_by_the_letter(client: httpx.Client, chat: Any, events: Any, joined: Any) -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0, "stream_options": {"include_usage": True}}
    documents, done = events(client, CHAT, body)
    assert done
    *chunks, usage = documents
    assert {document["id"] for document in documents} == {chunks[0]["id"]}
    assert {document["created"] for document in documents} == {chunks[0]["created"]}
    assert {document["object"] for document in documents} == {"chat.completion.chunk"}
    deltas = [document["choices"][0]["delta"] for document in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(set(delta) == {"content"} for delta in deltas[1:-1])
    assert [document["choices"][0]["finish_reason"] for document in chunks[-2:]] == [None, "length"]
    assert all(document["usage"] is None for document in chunks)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 8)
    assert joined(documents) == chat()["choices"][0]["message"]["content"]


def test_usage_is_not_told_unasked(client: httpx.Client, events: Any) -> None:
    documents, done = events(client, CHAT, {"messages": MESSAGES, "max_tokens": 2})
    assert done
    assert not any("usage" in document for document in documents)


def test_completions_stream_the_same_text(client: httpx.Client, complete: Any, events: Any, joined: Any) -> None:
    documents, done = events(client, COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0})
    assert done
    assert joined(documents) == complete()["choices"][0]["text"]
    assert documents[-1]["choices"][0]["finish_reason"] == "length"


def test_stop_strings_are_not_shown(client: httpx.Client, complete: Any, events: Any, joined: Any) -> None:
    text = complete(max_tokens=16)["choices"][0]["text"]
    stop = text[12:16]
    short = complete(max_tokens=16, stop=[stop, "never"])["choices"][0]
    assert (short["text"], short["finish_reason"]) == (text[: text.index(stop)], "stop")
    documents, _ = events(client, COMPLETIONS, {"prompt": "Once upon a time", "temperature": 0, "stop": stop})
    assert joined(documents) == text[: text.index(stop)]


def test_several_choices_and_prompts(client: httpx.Client, complete: Any, events: Any, joined: Any) -> None:
    prompts = ["Once upon a time", "The dog"]
    alone = [complete(prompt)["choices"][0]["text"] for prompt in prompts]
    both = complete(prompts, n=2)
    assert [choice["text"] for choice in both["choices"]] == [alone[0], alone[0], alone[1], alone[1]]
    assert both["usage"]["completion_tokens"] == 32
    drawn = complete(n=3, temperature=1.0, seed=5)["choices"]
    assert len({choice["text"] for choice in drawn}) > 1
    assert drawn[1]["text"] == complete(temperature=1.0, seed=6)["choices"][0]["text"]
    documents, _ = events(client, COMPLETIONS, {"prompt": prompts, "max_tokens": 8, "temperature": 0})
    assert [joined(documents, index) for index in (0, 1)] == alone


def test_token_prompts(client: httpx.Client, complete: Any) -> None:
    tokens = client.post("/tokenize", json={"content": "Once upon a time", "add_special": True}).json()["tokens"]
    assert complete(tokens)["choices"][0]["text"] == complete()["choices"][0]["text"]
    assert complete([tokens])["usage"]["prompt_tokens"] == len(tokens)
    assert client.post("/detokenize", json={"tokens": tokens}).json()["content"] == "Once upon a time"
    assert client.post("/tokenize", json={"prompt": "Once"}).json()["tokens"] == tokens[1:2]


def test_the_template_can_be_seen(client: httpx.Client) -> None:
    prompt = client.post("/apply-template", json={"messages": MESSAGES}).json()["prompt"]
    assert "Tell me a story." in prompt


def test_logprobs_of_a_chat(chat: Any) -> None:
    choice = chat(logprobs=True, top_logprobs=2)["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 8
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == choice["message"]["content"]
    for entry in content:
        assert entry["logprob"] <= 0
        assert entry["top_logprobs"][0]["token"] == entry["token"]  # greedy
        assert sum(math.exp(top["logprob"]) for top in entry["top_logprobs"]) <= 1.0001
    assert chat(logprobs=True)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_logprobs_of_a_completion_and_its_prompt(complete: Any) -> None:
    made = complete(logprobs=2)["choices"][0]
    assert "".join(made["logprobs"]["tokens"]) == made["text"]
    scored = complete("Once upon a time" + made["text"], echo=True, max_tokens=0, logprobs=1)["choices"][0]
    assert scored["text"] == "Once upon a time" + made["text"]
    logprobs = scored["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][-8:] == pytest.approx(made["logprobs"]["token_logprobs"], abs=0.05)
    assert logprobs["text_offset"][:3] == [0, 0, len("Once")]  # the begin token is not in the text
    plain = complete(echo=True)["choices"][0]
    assert plain["text"] == "Once upon a time" + made["text"]


def test_parameters_change_the_text(client: httpx.Client, complete: Any) -> None:
    plain = complete(max_tokens=12)["choices"][0]["text"]
    first = complete(logprobs=0)["choices"][0]["logprobs"]["tokens"][0]
    assert complete(max_tokens=12, top_p=0, temperature=1)["choices"][0]["text"] == plain
    assert complete(max_tokens=12, temperature=1e-5)["choices"][0]["text"] == plain
    banned = complete(max_tokens=1, logit_bias={str(_token_of(client, first)): -100})["choices"][0]["text"]
    assert banned != first
    assert complete(max_tokens=12, frequency_penalty=2, presence_penalty=2)["choices"][0]["text"] != plain
    seeds = [complete(temperature=1.5, seed=seed)["choices"][0]["text"] for seed in (-2, -2, 7)]
    assert seeds[0] == seeds[1] != seeds[2]


def _token_of(client: httpx.Client, text: str) -> int:
    """The id of a token of its own."""
    (token,) = client.post("/tokenize", json={"content": text}).json()["tokens"]
    return int(token)


def test_an_answer_that_was_begun_is_gone_on_with(chat: Any, client: httpx.Client) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "Once upon a time there"}]
    answer = client.post(CHAT, json={"messages": begun, "max_tokens": 4, "temperature": 0}).json()
    assert answer["choices"][0]["message"]["content"].startswith(" ")


def test_messages_of_every_form(client: httpx.Client) -> None:
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "3", "tool_call_id": "x"},
    ]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert "Hello you" in prompt
    assert '{"name": "f", "arguments": {}}' in prompt


def test_a_repeated_prompt_is_cached(chat: Any) -> None:
    text = "There was a fox who liked to run. " * 8
    chat(text, max_tokens=1)
    assert chat(text, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}


def test_structured_answers(chat: Any, client: httpx.Client, events: Any, joined: Any) -> None:
    formats: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
    ]
    for fields in formats:
        choice = chat(max_tokens=30, **fields)["choices"][0]
        assert json.loads(choice["message"]["content"])["n"] in (1, 22)
        assert choice["finish_reason"] == "stop"
    assert re.fullmatch(r"[xyz]{3}", chat(regex="[xyz]{3}")["choices"][0]["message"]["content"])
    assert chat(grammar='start: "yes" | "no"')["choices"][0]["message"]["content"] in ("yes", "no")
    documents, _ = events(client, CHAT, {"messages": MESSAGES, "max_tokens": 30, **formats[0]})
    assert json.loads(joined(documents))["n"] in (1, 22)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"enum": [{}]}}},
]


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_choice": ["a.b", "(c|d)"]},
        {"structured_outputs": {"choice": ["a.b", "(c|d)"]}},
        {"guided_regex": r"a\.b|\(c\|d\)"},
        {"structured_outputs": {"regex": r"a\.b|\(c\|d\)"}},
        {"guided_grammar": 'root ::= "a.b" | "(c|d)"'},
        {"grammar": 'root ::= "a.b" | "(c|d)"'},
    ],
)
def test_forms_of_other_servers(complete: Any, fields: dict[str, Any]) -> None:
    assert complete(**fields)["choices"][0]["text"] in ("a.b", "(c|d)")


@pytest.mark.parametrize("field", ["guided_json", "json_schema", "structured_outputs"])
def test_schemas_of_other_servers(complete: Any, field: str) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}
    value = {"json": schema} if field == "structured_outputs" else schema
    assert complete(**{field: value})["choices"][0]["text"] == '{"a": 7}'


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tools_that_must_be_called(chat: Any, client: httpx.Client, choice: Any, events: Any) -> None:
    answer = chat(tools=TOOLS, tool_choice=choice, max_tokens=60)["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    (call,) = answer["message"]["tool_calls"]
    assert (call["type"], re.fullmatch(r"call_[0-9a-f]{24}", call["id"]) is None) == ("function", False)
    if choice != "required":
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 60, "tools": TOOLS, "tool_choice": choice}
    documents, _ = events(client, CHAT, body)
    deltas = [c["delta"]["tool_calls"][0] for d in documents for c in d["choices"] if "tool_calls" in c["delta"]]
    assert set(deltas[0]) == {"index", "id", "type", "function"}
    assert deltas[0]["function"] == {"name": call["function"]["name"], "arguments": ""}
    assert "".join(delta["function"]["arguments"] for delta in deltas) == call["function"]["arguments"]
    assert documents[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_tools_that_may_be_called(chat: Any) -> None:
    free = chat(tools=TOOLS, max_tokens=6)["choices"][0]
    assert free["message"]["content"] or free["message"]["tool_calls"]
    assert "tool_calls" not in chat(tools=TOOLS, tool_choice="none", max_tokens=2)["choices"][0]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 100}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}, "stream": True}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}}, "response_format"),
        ({"regex": "((", "stream": True}, "regex"),
        ({"grammar": "root ::= nothing"}, "grammar"),
        ({"regex": "a", "guided_choice": ["b"]}, "response_format"),
        ({"guided_json": "{", "stream": True}, "guided_json"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "((", "json": None}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools"),
        ({"tools": [{"type": "magic", "function": {"name": "x"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "other"}}}, "tool_choice"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"seed": 1 << 70}, "seed"),
    ],
)
def test_requests_that_make_no_sense(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    if "messages" not in body and body:
        body = {"messages": MESSAGES, **body}
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert error["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": []},
        {"prompt": ["a", [1]]},
        {"prompt": [1, -1]},
        {"prompt": [5000]},
        {"prompt": ["a"] * 65},
        {"prompt": "a", "suffix": "b"},
        {"prompt": "a", "max_tokens": 0},
        {"prompt": "a", "logprobs": 21},
    ],
)
def test_completions_that_make_no_sense(client: httpx.Client, body: dict[str, Any]) -> None:
    answer = client.post(COMPLETIONS, json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_long_prompts_are_refused_before_they_are_tokenized(client: httpx.Client) -> None:
    for text in ("a " * 3000, "x" * 2_000_000):
        answer = client.post(COMPLETIONS, json={"prompt": text})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_fields_that_are_ignored(chat: Any) -> None:
    chat(
        user="u",
        metadata={},
        store=True,
        service_tier="auto",
        verbosity="low",
        reasoning_effort="low",
        zzz=1,
        stop=None,
    )


def test_other_models_and_paths(client: httpx.Client) -> None:
    answer = client.post(CHAT, json={"model": "gpt-4", "messages": MESSAGES})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    for path in ("/v1/files", "/v1/moderations", "/nowhere"):
        answer = client.post(path, json={})
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")
    assert client.get(CHAT).status_code == 405
    assert client.get("/slots").status_code == 404


def test_reasoning_is_told_apart(
    client: httpx.Client, chat: Any, events: Any, joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if " upon" opened the model's thoughts and " time" closed them."""
    tags = (_token_of(client, " upon"), _token_of(client, " time"))
    plain = chat()["choices"][0]["message"]["content"]
    assert plain.startswith("Once upon a time there")
    monkeypatch.setattr(Model, "thinking_tags", property(lambda self: tags))
    message = chat()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (plain.replace(" upon a time", ""), " a")
    documents, _ = events(client, CHAT, {"messages": MESSAGES, "max_tokens": 8, "temperature": 0})
    assert joined(documents) == message["content"]
    deltas = [document["choices"][0]["delta"] for document in documents]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == " a"
    refused = client.post(CHAT, json={"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": True}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template_kwargs")


def test_reasoning_effort_switches_thinking(serve: Any) -> None:
    """As in OpenAI's API, where "none" is no thinking; a model without the switch is asked as usual."""
    folder = Path(__file__).parents[3] / "core" / "tests" / "golden" / "qwen3" / "qwen3-tied"
    with serve(lambda: bitnet_core.load(folder / "Q2_0-g64.gguf", "numpy")) as served, served.client() as client:

        def prompt(**fields: Any) -> int:
            answer = client.post(CHAT, json={"messages": MESSAGES, "max_tokens": 1, **fields})
            assert answer.status_code == 200, answer.text
            return int(answer.json()["usage"]["prompt_tokens"])

        thinking, off = (prompt(chat_template_kwargs={"enable_thinking": think}) for think in (True, False))
        assert thinking != off
        assert (prompt(reasoning_effort="high"), prompt(reasoning_effort="none")) == (thinking, off)
        kept = prompt(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
        assert kept == thinking


def test_a_seed_of_minus_one_is_a_random_one(complete: Any) -> None:
    texts = {complete(temperature=1.5, max_tokens=12, seed=-1)["choices"][0]["text"] for _ in range(4)}
    assert len(texts) > 1
    assert len({complete(temperature=1.5, max_tokens=12, seed=-2)["choices"][0]["text"] for _ in range(2)}) == 1
