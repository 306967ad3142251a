"""The anthropic package against `bitnet serve`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

ASKED: dict[str, Any] = {
    "model": "stories",
    "max_tokens": 8,
    "extra_body": {"temperature": 0},  # not a parameter of the package's newest releases
    "messages": [{"role": "user", "content": "Tell me a story."}],
}
TOOL: Any = {
    "name": "rise",
    "description": "Rise.",
    "input_schema": {"type": "object", "properties": {"of": {"enum": ["sun", "moon"]}}, "required": ["of"]},
}


@pytest.fixture
def client(url: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made


def test_messages_whole_and_streamed(client: Anthropic) -> None:
    whole = client.messages.create(**ASKED, system="Be kind.")
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 8)
    with client.messages.stream(**ASKED, system="Be kind.") as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].type == whole.content[0].type == "text"
    assert text == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == 8


def test_tools_are_used(client: Anthropic) -> None:
    asked: dict[str, Any] = {**ASKED, "max_tokens": 60, "tools": [TOOL], "tool_choice": {"type": "any"}}
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    (used,) = final.content
    assert used.type == "tool_use"
    assert used.input["of"] in ("sun", "moon")  # type: ignore[index]  # an object by the schema
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "done"}
    turns = [{"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**{**ASKED, "messages": ASKED["messages"] + turns}).content


def test_tokens_are_counted(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="stories", messages=ASKED["messages"])
    usage = client.messages.create(**ASKED).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_have_their_classes(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="claude-9"):
        client.messages.create(**{**ASKED, "model": "claude-9"})
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(**{**ASKED, "messages": [{"role": "user", "content": "x " * 4000}]})
