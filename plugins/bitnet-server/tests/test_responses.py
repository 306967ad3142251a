"""OpenAI's /v1/responses: answers, the order of events, kept responses, tools, errors."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from bitnet_server.errors import ApiError
from bitnet_server.protocols.chunks import ChunkChoice, ChunkDelta
from bitnet_server.protocols.kept_responses import KeptResponses
from bitnet_server.protocols.responses_answer import ResponsesAnswer
from bitnet_server.protocols.responses_input import InputItem, InputPart, chat_messages

SCHEMA = {"type": "object", "properties": {"of": {"enum": ["sun", "moon"]}}, "required": ["of"]}
TOOL = {"type": "function", "name": "rise", "description": "Rise.", "parameters": SCHEMA, "strict": False}
OTHER = {"type": "function", "name": "set", "parameters": SCHEMA}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "stories", "input": "Tell me a story.", "max_output_tokens": 8, "temperature": 0, **fields}


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/responses", json=body(**fields))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def stream(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream; the name of each must be its type, and their numbers must rise by one."""
    answer = client.post("/v1/responses", json=body(stream=True, **fields))
    assert answer.status_code == 200, answer.text
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def text_of(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    assert (item["type"], part["type"]) == ("message", "output_text")
    text: str = part["text"]
    return text


def test_a_whole_response_has_the_text_of_a_chat(client: httpx.Client, chat: Any) -> None:
    response, same = ask(client), chat()
    assert response["id"].startswith("resp_")
    assert (response["object"], response["model"]) == ("response", "stories")
    assert text_of(response) == same["choices"][0]["message"]["content"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (same["usage"]["prompt_tokens"], 8)
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


def test_the_order_of_events(client: httpx.Client) -> None:
    events = stream(client)
    kinds = [event["type"] for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[2]["item"]["content"] == []
    text = "".join(event["delta"] for event in events[4:-4])
    assert text == events[-4]["text"] == text_of(events[-1]["response"]) == text_of(ask(client))
    assert {event["item_id"] for event in events[3:-2]} == {events[2]["item"]["id"]}


def test_a_response_is_continued(client: httpx.Client, chat: Any) -> None:
    first = ask(client, instructions="Be kind.")
    second = ask(client, input="And then?", previous_response_id=first["id"])
    messages = [
        {"role": "user", "content": "Tell me a story."},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "And then?"},
    ]
    same = chat(messages=messages)  # instructions are not carried over
    assert text_of(second) == same["choices"][0]["message"]["content"]
    assert second["previous_response_id"] == first["id"]
    stateless = [{"role": "user", "content": "Tell me a story."}, *first["output"]]
    stateless.append({"role": "user", "content": [{"type": "input_text", "text": "And then?"}]})
    assert text_of(ask(client, input=stateless, store=False)) == text_of(second)
    stateless[1] = {"type": "item_reference", "id": first["output"][0]["id"]}
    assert text_of(ask(client, input=stateless)) == text_of(second)


def test_input_items_are_listed_by_page(client: httpx.Client) -> None:
    first = ask(client, input="One.", instructions="Short.")
    second = ask(client, input=[{"role": "user", "content": "Two."}], previous_response_id=first["id"])
    path = f"/v1/responses/{second['id']}/input_items"
    page = client.get(path, params={"order": "asc"}).json()
    texts = [item["content"][0]["text"] for item in page["data"]]
    assert texts == ["One.", text_of(first), "Two."]
    assert [item["content"][0]["type"] for item in page["data"]] == ["input_text", "output_text", "input_text"]
    assert page["data"][1]["id"] == first["output"][0]["id"]
    newest = client.get(path, params={"limit": 1}).json()
    assert (newest["data"], newest["has_more"]) == (page["data"][2:], True)
    older = client.get(path, params={"after": newest["last_id"]}).json()
    assert (older["data"], older["has_more"]) == (page["data"][1::-1], False)
    for wrong in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "nothing"}):
        refused = client.get(path, params=wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(wrong)))
    assert client.get("/v1/responses/resp_x/input_items").status_code == 404


def test_kept_responses_can_be_read_and_dropped(client: httpx.Client) -> None:
    response = ask(client)
    path = f"/v1/responses/{response['id']}"
    assert client.get(path).json() == response
    assert client.delete(path).json() == {"id": response["id"], "object": "response", "deleted": True}
    assert client.get(path).status_code == 404
    refused = client.post("/v1/responses", json=body(previous_response_id=response["id"]))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
    unkept = ask(client, store=False)
    assert client.get(f"/v1/responses/{unkept['id']}").status_code == 404
    streamed = stream(client)[-1]["response"]
    assert client.get(f"/v1/responses/{streamed['id']}").json() == streamed


def test_the_oldest_responses_are_dropped() -> None:
    kept = KeptResponses(max_bytes=1000)
    for number in range(20):
        kept.keep({"id": str(number), "output": [{"id": f"item{number}"}]}, [{"content": "x" * 100}])
    found = [number for number in range(20) if kept.find(str(number))]
    assert found == list(range(found[0], 20))
    assert 3 < len(found) < 9
    assert kept.find_item("item19") == {"id": "item19"}
    assert kept.find_item("item0") is None
    kept.keep({"id": "huge", "output": []}, [{"content": "x" * 2000}])
    assert kept.find("huge") is None


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "rise"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "rise"}]},
    ],
)
def test_functions_are_called(client: httpx.Client, choice: Any) -> None:
    tools = [TOOL] if choice == "required" else [TOOL, OTHER]
    fields: dict[str, Any] = {"tools": tools, "tool_choice": choice, "max_output_tokens": 60}
    response = ask(client, **fields)
    (call,) = response["output"]
    assert (call["type"], call["name"], response["status"]) == ("function_call", "rise", "completed")
    assert json.loads(call["arguments"])["of"] in ("sun", "moon")
    events = stream(client, **fields)
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    done = next(event for event in events if event["type"] == "response.function_call_arguments.done")
    assert "".join(deltas) == done["arguments"] == call["arguments"]
    assert events[-1]["type"] == "response.completed"
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    assert text_of(ask(client, input=[output], previous_response_id=response["id"]))


def test_a_format_is_enforced(client: httpx.Client) -> None:
    schema = SCHEMA | {"additionalProperties": False}
    form = {"type": "json_schema", "name": "rise", "schema": schema, "strict": True}
    response = ask(client, text={"format": form}, max_output_tokens=60)
    assert json.loads(text_of(response))["of"] in ("sun", "moon")
    assert response["text"]["format"] == form
    assert text_of(ask(client, text={"format": {"type": "json_object"}})).startswith("{")
    assert text_of(ask(client, text={"format": {"type": "text"}})) == text_of(ask(client))


def test_logprobs_are_in_the_text(client: httpx.Client) -> None:
    response = ask(client, top_logprobs=2)
    (part,) = response["output"][0]["content"]
    assert len(part["logprobs"]) == 8
    assert len(part["logprobs"][0]["top_logprobs"]) == 2
    assert ask(client, include=["message.output_text.logprobs"])["output"][0]["content"][0]["logprobs"]


def test_a_turn_is_one_message() -> None:
    items = [
        InputItem(role="developer", content="Be brief."),
        InputItem(role="user", content=[InputPart("input_text", "Hi")]),
        InputItem(type="reasoning", summary=[InputPart("summary_text", "Hm.")]),
        InputItem(role="assistant", content=[InputPart("output_text", "Well,")]),
        InputItem(type="function_call", call_id="c1", name="rise", arguments='{"of": "sun"}'),
        InputItem(type="function_call", call_id="c2", name="rise", arguments='{"of": "moon"}'),
        InputItem(type="function_call_output", call_id="c1", output="up"),
    ]
    system, user, turn, result = chat_messages(items, "Be kind.")
    assert system == {"role": "system", "content": "Be kind.\n\nBe brief."}
    assert user == {"role": "user", "content": "Hi"}
    assert (turn["content"], turn["reasoning_content"]) == ("Well,", "Hm.")
    assert [call["id"] for call in turn["tool_calls"]] == ["c1", "c2"]
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "up"}
    with pytest.raises(ApiError, match="input_image"):
        chat_messages([InputItem(role="user", content=[InputPart("input_image")])], None)


def test_reasoning_is_an_item_of_its_own(server: Any) -> None:
    request = SimpleNamespace(
        store=False, instructions=None, max_output_tokens=None, metadata=None, parallel_tool_calls=None, text=None,
        previous_response_id=None, reasoning=None, temperature=None, tool_choice=None, tools=None, top_p=None,
        truncation=None,
    )  # fmt: skip
    call = SimpleNamespace(service=server.service, responses_request=request, items=[], states=[], reasoning_tokens=3)
    answer = ResponsesAnswer(call)  # type: ignore[arg-type]  # all it reads
    events = answer.start()
    for delta in (ChunkDelta(reasoning_content="Hm"), ChunkDelta(reasoning_content="."), ChunkDelta(content="Yes")):
        events += answer.push(ChunkChoice(delta))
    events += [*answer.push(ChunkChoice(finish_reason="stop")), *answer.end()]
    kinds = [json.loads(event)["type"].removeprefix("response.") for event in events]
    thinking = ["output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"]
    thought = ["reasoning_text.done", "content_part.done", "output_item.done"]
    said = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    assert kinds == ["created", "in_progress", *thinking, *thought, *said, "output_item.done", "completed"]
    reasoning, message = answer.document()["output"]
    assert (reasoning["type"], reasoning["content"][0]["text"]) == ("reasoning", "Hm.")
    assert (message["type"], message["content"][0]["text"]) == ("message", "Yes")
    assert answer.document()["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    assert b"event: response.failed" in answer.failed(ApiError(503, "the device is lost"))


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "gpt-9"}, 404, "gpt-9"),
        ({"temperature": 9}, 400, "temperature"),
        ({"background": True}, 400, "background"),
        ({"conversation": "conv_1"}, 400, "conversation"),
        ({"truncation": "some"}, 400, "truncation"),
        ({"input": []}, 400, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, 400, "input[0].role"),
        ({"input": [{"type": "computer_call"}]}, 400, "computer_call"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, 400, "msg_1"),
        ({"input": "x " * 4000}, 400, "context"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, 400, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, 400, "xml"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": 5}}, 400, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [{"name": []}]}}, 400, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "none"}]}},
            400,
            "'none'",
        ),
        ({"tools": [{**TOOL, "name": "a b"}]}, 400, "tools[0].name"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens must"),
    ],
)
def test_errors_have_openai_s_form(client: httpx.Client, fields: dict[str, Any], status: int, words: str) -> None:
    answer = client.post("/v1/responses", json=body(**fields))
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def test_input_tokens_are_those_of_the_response(client: httpx.Client) -> None:
    asked = body(tools=[TOOL], instructions="Be kind.")
    counted = client.post("/v1/responses/input_tokens", json=asked)
    used = client.post("/v1/responses", json=asked).json()["usage"]["input_tokens"]
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": used}


def test_an_error_of_the_chat_names_the_field_of_the_response(client: httpx.Client) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "x"}}
    answer = client.post("/v1/responses", json=body(text={"format": form}))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text.format")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/api/chat"])
def test_deep_nesting_is_refused(client: httpx.Client, path: str) -> None:
    """At each depth the body can be read, but perhaps not written again as a chat, which is nested deeper."""
    asked = {
        "/v1/responses": '"input": "x"',
        "/v1/messages": '"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]',
    }
    common = asked.get(path, '"messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 1}')
    limit = sys.getrecursionlimit()
    for depth in {100, *range(limit - 30, limit + 3), 5 * limit}:
        schema = '{"a":' * depth + "1" + "}" * depth
        tool = {"/v1/responses": f'{{"type": "function", "name": "f", "parameters": {schema}}}'}
        tool["/v1/messages"] = f'{{"name": "f", "input_schema": {schema}}}'
        tool["/api/chat"] = f'{{"type": "function", "function": {{"name": "f", "parameters": {schema}}}}}'
        answer = client.post(path, content=f'{{"model": "stories", {common}, "tools": [{tool[path]}]}}')
        assert answer.status_code in (200, 400), (depth, answer.text)
