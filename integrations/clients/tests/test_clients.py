"""Other people's clients against `bitnet serve`: openai, LangChain, LlamaIndex, and the calls that Open WebUI makes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ASKED: list[Any] = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def test_openai_chats(client: OpenAI) -> None:
    model = client.models.list().data[0].id
    whole = client.chat.completions.create(model=model, messages=ASKED, max_tokens=8, temperature=0, logprobs=True)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].finish_reason == "length"
    stream = client.chat.completions.create(
        model=model, messages=ASKED, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_openai_completions(client: OpenAI) -> None:
    prompts = ["Once", "The dog"]
    made = client.completions.create(model="stories", prompt=prompts, n=2, max_tokens=4, logprobs=1, echo=True)
    assert [choice.text[:4] for choice in made.choices] == ["Once", "Once", "The ", "The "]


def test_openai_structured_answers_and_tools(client: OpenAI) -> None:
    from pydantic import BaseModel, Field

    class Animal(BaseModel):
        name: str = Field(max_length=8)
        legs: int = Field(ge=0, le=8)

    parsed = client.chat.completions.parse(
        model="stories", messages=ASKED, response_format=Animal, max_tokens=60, temperature=0
    )
    animal = parsed.choices[0].message.parsed
    assert animal is not None
    assert 0 <= animal.legs <= 8
    properties = {"of": {"enum": ["sun", "moon"]}}
    parameters = {"type": "object", "properties": properties, "required": ["of"], "additionalProperties": False}
    tool: Any = {"type": "function", "function": {"name": "rise", "parameters": parameters}}
    with client.chat.completions.stream(
        model="stories", messages=ASKED, tools=[tool], tool_choice="required", max_tokens=60
    ) as stream:
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or ()
    assert final.choices[0].finish_reason == "tool_calls"
    assert json.loads(call.function.arguments)["of"] in ("sun", "moon")


def test_openai_errors(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=ASKED)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="stories", messages=ASKED, temperature=9)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="stories", prompt="x " * 5000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        client.embeddings.create(model="stories", input="x")


def test_openai_responses(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "stories", "max_output_tokens": 8, "temperature": 0}
    whole = client.responses.create(input="Tell me a story.", **asked)
    assert (whole.status, whole.usage and whole.usage.output_tokens) == ("incomplete", 8)
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    with client.responses.stream(input="Tell me a story.", **asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == whole.output_text
    after = client.responses.create(input="And then?", previous_response_id=whole.id, **asked)
    assert after.output_text
    client.responses.delete(whole.id)
    with pytest.raises(openai.BadRequestError, match="whole conversation"):
        client.responses.create(input="And then?", previous_response_id=whole.id, **asked)


def test_openai_responses_with_functions_and_formats(client: OpenAI) -> None:
    from pydantic import BaseModel, Field

    class Animal(BaseModel):
        name: str = Field(max_length=8)
        legs: int = Field(ge=0, le=8)

    parsed = client.responses.parse(
        model="stories", input="An animal.", text_format=Animal, max_output_tokens=60, temperature=0
    )
    assert parsed.output_parsed is not None
    assert 0 <= parsed.output_parsed.legs <= 8
    tool = openai.pydantic_function_tool(Animal, name="draw")["function"]
    function: Any = {"type": "function", "name": "draw", "parameters": tool["parameters"], "strict": True}
    with client.responses.stream(
        model="stories", input="Draw.", tools=[function], tool_choice="required", max_output_tokens=90, temperature=0
    ) as stream:
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    assert isinstance(call.parsed_arguments, Animal) or 0 <= json.loads(call.arguments)["legs"] <= 8


@pytest.mark.parametrize("name", ["langchain_chat.py", "llamaindex_chat.py"])
def test_the_examples_of_the_documentation(url: str, name: str) -> None:
    command = [sys.executable, str(EXAMPLES / name), url + "/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 5


def test_open_webui_calls(url: str) -> None:
    """Send what its routers/openai.py sends: a list of models, a chat with fields of its own, a title, and a stop."""
    with httpx.Client(base_url=url, headers={"authorization": "Bearer none"}, timeout=60) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        chat = {"model": model, "messages": ASKED, "max_tokens": 6}
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
        extra = {"user": {"name": "n", "id": "i", "email": "e", "role": "admin"}, "metadata": {"chat_id": "x"}}
        text = client.post("/v1/chat/completions", json=chat | extra).text
        assert text.endswith("data: [DONE]\n\n")
        title = {"model": model, "stream": False, "max_tokens": 8, "messages": ASKED, "metadata": {"task": "title"}}
        assert client.post("/v1/chat/completions", json=title).json()["choices"][0]["message"]["content"]

        async def leave() -> None:
            async with httpx.AsyncClient(base_url=url) as other:
                body = chat | {"max_tokens": 900}
                async with other.stream("POST", "/v1/chat/completions", json=body) as answer:
                    async for _ in answer.aiter_lines():
                        break

        asyncio.run(leave())
        end = time.monotonic() + 10
        while 'running{model_name="stories"} 0.0' not in client.get("/metrics").text:
            assert time.monotonic() < end
