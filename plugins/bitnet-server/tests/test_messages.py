"""Anthropic's /v1/messages: answers, the order of events, tools, errors."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from bitnet_server.errors import ApiError
from bitnet_server.protocols.chunks import CallDelta, CallFunction, ChunkChoice, ChunkDelta
from bitnet_server.protocols.messages_answer import MessagesAnswer

ASKED = [{"role": "user", "content": "Tell me a story."}]
WHERE = {"type": "object", "properties": {"of": {"enum": ["sun", "moon"]}}, "required": ["of"]}
TOOL = {"name": "rise", "description": "Rise.", "input_schema": WHERE}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "stories", "max_tokens": 8, "temperature": 0, "messages": ASKED, **fields}


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/messages", json=body(**fields))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def stream(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream; the name of each must be its type."""
    answer = client.post("/v1/messages", json=body(stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_a_whole_message_has_the_text_of_a_chat(client: httpx.Client, chat: Any) -> None:
    message = ask(client)
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "stories")
    assert message["content"] == [{"type": "text", "text": chat()["choices"][0]["message"]["content"]}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    usage = message["usage"]
    assert usage["output_tokens"] == 8
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat()["usage"]["prompt_tokens"]


def test_the_order_of_events(client: httpx.Client) -> None:
    events = stream(client)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert events[1]["content_block"] == {"type": "text", "text": ""}
    text = "".join(event["delta"]["text"] for event in events[2:-3])
    assert [{"type": "text", "text": text}] == ask(client)["content"]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 8


def test_a_stop_sequence_is_named(client: httpx.Client) -> None:
    text = ask(client, max_tokens=16)["content"][0]["text"]
    stop = text[12:16]
    message = ask(client, max_tokens=16, stop_sequences=["never", stop])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    assert message["content"][0]["text"] == text[: text.index(stop)]


def test_system_and_text_blocks_are_a_chat(client: httpx.Client, chat: Any) -> None:
    block = {"type": "text", "text": "Tell me a story.", "cache_control": {"type": "ephemeral"}}
    message = ask(
        client, system=[{"type": "text", "text": "Be kind."}], messages=[{"role": "user", "content": [block]}]
    )
    same = chat(messages=[{"role": "system", "content": "Be kind."}, *ASKED])
    assert message["content"][0]["text"] == same["choices"][0]["message"]["content"]


def test_system_messages_stand_where_they_are(client: httpx.Client, chat: Any) -> None:
    turns = [*ASKED, {"role": "assistant", "content": "No."}, {"role": "system", "content": "Do."}, *ASKED]
    begun = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, *turns]
    message = ask(client, system="Be kind.", messages=begun)
    same = chat(messages=[{"role": "system", "content": "Be kind.\n\nBe brief."}, *turns])
    assert message["content"][0]["text"] == same["choices"][0]["message"]["content"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "rise"}])
def test_a_tool_is_used(client: httpx.Client, choice: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 60}
    message = ask(client, **fields)
    (block,) = message["content"]
    assert (block["type"], block["name"], message["stop_reason"]) == ("tool_use", "rise", "tool_use")
    assert block["input"]["of"] in ("sun", "moon")
    events = stream(client, **fields)
    start = next(event for event in events if event["type"] == "content_block_start")["content_block"]
    assert (start["name"], start["input"]) == ("rise", {})
    parts = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert {part["type"] for part in parts} == {"input_json_delta"}
    assert json.loads("".join(part["partial_json"] for part in parts)) == block["input"]


def test_a_result_of_a_tool_is_answered(client: httpx.Client) -> None:
    messages = [
        *ASKED,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "tool_use", "id": "toolu_1", "name": "rise", "input": {"of": "sun"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "done"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    assert ask(client, messages=messages, tools=[TOOL])["content"]
    counted = client.post("/v1/messages/count_tokens", json={"model": "stories", "messages": messages})
    plain = client.post("/v1/messages/count_tokens", json={"model": "stories", "messages": ASKED})
    assert counted.json()["input_tokens"] > plain.json()["input_tokens"] > 0


def test_an_output_format_is_enforced(client: httpx.Client) -> None:
    form = {"type": "json_schema", "schema": WHERE | {"additionalProperties": False}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        message = ask(client, max_tokens=60, **fields)
        assert json.loads(message["content"][0]["text"])["of"] in ("sun", "moon")


def test_count_tokens_counts_what_a_message_has(client: httpx.Client) -> None:
    counted = client.post("/v1/messages/count_tokens", json={"model": "stories", "messages": ASKED, "tools": [TOOL]})
    usage = ask(client, tools=[TOOL])["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"model": "claude-9"}, 404, "not_found_error", "claude-9"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"temperature": 9}, 400, "invalid_request_error", "temperature"),
        ({"messages": [{"role": "user", "content": "x " * 4000}]}, 400, "invalid_request_error", "prompt is too long"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error", "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "image"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, 400, "invalid_request_error", r"tools[0]"),
        ({"tools": [{"name": "a b"}]}, 400, "invalid_request_error", "tools[0].name"),
        (
            {"tools": [{"name": "f", "input_schema": json.loads('{"items": ' * 70 + "{}" + "}" * 70)}]},
            400,
            "invalid_request_error",
            "tools[0].input_schema",
        ),
        ({"thinking": {"type": "much"}}, 400, "invalid_request_error", "thinking.type"),
        (
            {"output_format": {"type": "json_schema", "schema": {"type": "x"}}},
            400,
            "invalid_request_error",
            "output_config.format: ",
        ),
        ({"tool_choice": {"type": "maybe"}}, 400, "invalid_request_error", "tool_choice"),
    ],
)
def test_errors_have_anthropic_s_form(
    client: httpx.Client, fields: dict[str, Any], status: int, kind: str, words: str
) -> None:
    answer = client.post("/v1/messages", json=body(**fields))
    document = answer.json()
    assert (answer.status_code, document["type"], document["error"]["type"]) == (status, "error", kind)
    assert words in document["error"]["message"]


def test_blocks_of_thinking_text_and_tools(server: Any) -> None:
    call = SimpleNamespace(service=server.service, states=[], stop_string=None)
    answer = MessagesAnswer(call)  # type: ignore[arg-type]  # all it reads
    deltas = [
        ChunkDelta(reasoning_content="H"),
        ChunkDelta(reasoning_content="m."),
        ChunkDelta(content="Yes"),
        ChunkDelta(tool_calls=[CallDelta(0, "call_a", CallFunction("rise", '{"of": "sun"}'))]),
        ChunkDelta(tool_calls=[CallDelta(1, "call_b", CallFunction("set", "{}"))]),
    ]
    found = [event for delta in deltas for event in answer.push(ChunkChoice(delta))]
    found += [*answer.push(ChunkChoice(finish_reason="tool_calls")), *answer.end()]
    events = [json.loads(event) for event in found]
    starts = [event["index"] for event in events if event["type"] == "content_block_start"]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert starts == stops == [0, 1, 2, 3]
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    thinking = ["thinking_delta", "thinking_delta", "signature_delta"]
    assert kinds == [*thinking, "text_delta", "input_json_delta", "input_json_delta"]
    message = answer.document()
    assert message["stop_reason"] == "tool_use"
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "Yes"},
        {"type": "tool_use", "id": "call_a", "name": "rise", "input": {"of": "sun"}},
        {"type": "tool_use", "id": "call_b", "name": "set", "input": {}},
    ]
    failed = answer.failed(ApiError(503, "the device is lost"))
    error = {"type": "overloaded_error", "message": "the device is lost"}
    assert failed.startswith(b"event: error\ndata: ")
    assert json.loads(failed.partition(b"data: ")[2]) == {"type": "error", "error": error}


def test_fields_of_coding_agents_are_taken(client: httpx.Client) -> None:
    """The shape of an agent's request: system blocks and tools with cache_control, metadata, thinking, betas."""
    cached = {"cache_control": {"type": "ephemeral"}}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **WHERE, "additionalProperties": False}
    fields = {
        "system": [{"type": "text", "text": "You are an agent.", **cached}],
        "tools": [{**TOOL, "input_schema": schema, **cached}],
        "metadata": {"user_id": "user_1"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "context_management": {"edits": []},
    }
    answer = client.post("/v1/messages?beta=true", json=body(**fields), headers={"anthropic-beta": "x-2025-01-01"})
    assert answer.status_code == 200, answer.text


def test_the_key_may_be_x_api_key(serve: Any) -> None:
    with serve(loaded=True, api_keys=("secret",)) as served, served.client() as client:
        refused = client.post("/v1/messages", json=body())
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert client.post("/v1/messages", json=body(), headers={"x-api-key": "secret"}).status_code == 200
