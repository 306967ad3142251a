"""Requests of Open WebUI and Claude Code, replayed; they were written after descriptions (requests/*.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

FOLDER = Path(__file__).parent / "requests"


def requests_of(name: str) -> list[dict[str, Any]]:
    """The requests of a client, with its tools where they hold a mark."""
    found = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    requests: list[dict[str, Any]] = found["requests"]
    for request in requests:
        if request["body"] and request["body"].get("tools") == "TOOLS":
            request["body"]["tools"] = found["tools"]
    return requests


def replayed(client: httpx.Client, request: dict[str, Any]) -> httpx.Response:
    """The answer to a request; one of an agent ends at the first "a", as its limit is the whole context."""
    headers, path, body = request["headers"], request["path"], request["body"]
    if "max_tokens" in (body or {}):
        body = {**body, "stop_sequences": ["a"]}
    return client.request(request["method"], path, headers=headers, json=body)


def test_the_tools_are_as_many_and_as_long_as_the_page_sends() -> None:
    tools = requests_of("open_webui")[1]["body"]["tools"]
    assert (len(tools), len(json.dumps(tools))) == (36, 25_904)


@pytest.mark.parametrize("name", ["open_webui", "claude_code"])
def test_every_request_is_answered(serve: Any, name: str) -> None:
    """In a context of 1,024 tokens, with the tools of the first message told in half of it."""
    with serve(max_tokens=4) as served, served.client() as client:
        for request in requests_of(name):
            answer = replayed(client, request)
            assert answer.status_code == 200, (request["path"], answer.text)
            assert "error" not in answer.text, (request["path"], answer.text)
            body = request["body"] or {}
            if body.get("stream") and request["path"].startswith("/v1/"):
                assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
                end = "data: [DONE]" if "chat" in request["path"] else 'data: {"type":"message_stop"}'
                assert answer.text.rstrip().endswith(end)


def test_a_page_s_tool_can_be_called(client: httpx.Client) -> None:
    body = requests_of("open_webui")[1]["body"]
    named = {"type": "function", "function": {"name": "view_note"}}
    fields = {"stream": False, "tool_choice": named, "max_tokens": 32, "temperature": 0, "stream_options": None}
    schema = {"type": "object", "properties": {"note_id": {"enum": ["n1"]}}, "required": ["note_id"]}
    tools = [*body["tools"], {"type": "function", "function": {"name": "other", "parameters": schema}}]
    answer = client.post("/v1/chat/completions", json={**body, **fields, "tools": tools}).json()
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "view_note"
    assert answer["usage"]["prompt_tokens"] < 1024
