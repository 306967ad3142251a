"""The ollama package against `bitnet serve`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

ASKED = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"temperature": 0, "num_predict": 8}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"of": {"enum": ["sun", "moon"]}},
    "required": ["of"],
}


@pytest.fixture
def client(url: str) -> Iterator[ollama.Client]:
    made = ollama.Client(host=url)
    yield made
    made._client.close()


def test_chats_whole_and_streamed(client: ollama.Client) -> None:
    whole = client.chat("stories", ASKED, options=GREEDY)
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 8)
    parts = list(client.chat("stories:latest", ASKED, stream=True, options=GREEDY))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].done


def test_generate_and_formats(client: ollama.Client) -> None:
    assert client.generate("stories", "Once upon a time", raw=True, options=GREEDY).response
    answer = client.generate("stories", "The sun?", format=SCHEMA, options={**GREEDY, "num_predict": 60})
    assert json.loads(answer.response)["of"] in ("sun", "moon")
    assert client.generate("stories", "").done_reason == "load"


def test_models_are_described(client: ollama.Client) -> None:
    (model,) = client.list().models
    assert (model.model, model.details and model.details.format) == ("stories", "gguf")
    assert "completion" in (client.show("stories").capabilities or ())
    (running,) = client.ps().models
    assert running.context_length == 1024


def test_errors_are_sentences(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="there is no model 'llama3'") as caught:
        client.chat("llama3", ASKED)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="no embeddings") as caught:
        client.embed("stories", "x")
    assert caught.value.status_code == 501
