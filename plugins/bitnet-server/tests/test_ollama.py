"""Ollama's /api: lines, options, formats, tools, descriptions of the model."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import bitnet_core
import httpx
import pytest
from bitnet_server.errors import ApiError
from bitnet_server.protocols.chunks import CallDelta, CallFunction, ChunkChoice, ChunkDelta
from bitnet_server.protocols.keep_alive import seconds_of
from bitnet_server.protocols.ollama_answer import OllamaAnswer

ASKED = [{"role": "user", "content": "Tell me a story."}]
SCHEMA = {"type": "object", "properties": {"of": {"enum": ["sun", "moon"]}}, "required": ["of"]}
TOOL = {"type": "function", "function": {"name": "rise", "description": "Rise.", "parameters": SCHEMA}}
GREEDY = {"temperature": 0, "num_predict": 8}


def ask(client: httpx.Client, path: str = "/api/chat", **fields: Any) -> dict[str, Any]:
    given = {"model": "stories", "stream": False, "options": GREEDY}
    asked = {"messages": ASKED} if path == "/api/chat" else {"prompt": "Tell me a story."}
    answer = client.post(path, json=given | asked | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def lines(client: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post(path, json={"model": "stories", "options": GREEDY, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_whole_chat_has_the_text_of_openai_s(client: httpx.Client, chat: Any) -> None:
    answer = ask(client)
    same = chat()
    assert answer["message"] == {"role": "assistant", "content": same["choices"][0]["message"]["content"]}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", answer["created_at"])
    assert (answer["model"], answer["done"], answer["done_reason"]) == ("stories", True, "length")
    assert (answer["prompt_eval_count"], answer["eval_count"]) == (same["usage"]["prompt_tokens"], 8)
    assert answer["total_duration"] > answer["eval_duration"] > 0


def test_streaming_is_the_default(client: httpx.Client) -> None:
    *parts, last = lines(client, "/api/chat", messages=ASKED)
    assert all(part["done"] is False for part in parts)
    assert "".join(part["message"]["content"] for part in parts) == ask(client)["message"]["content"]
    assert (last["message"]["content"], last["done"], last["eval_count"]) == ("", True, 8)


def test_generate_is_a_chat_unless_raw(client: httpx.Client, complete: Any) -> None:
    text = ask(client, "/api/generate")["response"]
    assert text == ask(client)["message"]["content"]
    *parts, last = lines(client, "/api/generate", prompt="Tell me a story.")
    assert "".join(part["response"] for part in parts) == text
    assert last["done_reason"] == "length"
    raw = ask(client, "/api/generate", prompt="Once upon a time", raw=True)
    assert raw["response"] == complete()["choices"][0]["text"]
    long = ask(client, "/api/generate", prompt="Once upon a time", raw=True, options={"temperature": 0})
    assert long["eval_count"] > 8
    told = ask(client, "/api/generate", system="Be kind.")
    messages = [{"role": "system", "content": "Be kind."}, *ASKED]
    assert told["response"] == ask(client, messages=messages)["message"]["content"]


def test_options_are_those_of_sampling(client: httpx.Client, chat: Any) -> None:
    options = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 7, "repeat_penalty": 1.2}
    same = chat(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, seed=7, repetition_penalty=1.2)
    answer = ask(client, options=options | {"num_predict": 8, "num_ctx": 4096})
    assert answer["message"]["content"] == same["choices"][0]["message"]["content"]
    text = ask(client)["message"]["content"]
    stopped = ask(client, options=GREEDY | {"stop": [text[5:9]]})
    assert (stopped["message"]["content"], stopped["done_reason"]) == (text[: text.index(text[5:9])], "stop")
    assert ask(client, options={"temperature": 0, "num_predict": -1})["eval_count"] > 8


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_formats_are_enforced(client: httpx.Client, path: str) -> None:
    options = {"temperature": 0, "num_predict": 60}
    answer = ask(client, path, format=SCHEMA, options=options)
    text = answer["message"]["content"] if path == "/api/chat" else answer["response"]
    assert json.loads(text)["of"] in ("sun", "moon")
    answer = ask(client, path, format="json", options=options)
    text = answer["message"]["content"] if path == "/api/chat" else answer["response"]
    assert text.startswith("{")


def test_earlier_calls_are_told(client: httpx.Client) -> None:
    call = {"function": {"name": "rise", "arguments": {"of": "sun"}}}
    result = {"role": "tool", "tool_name": "rise", "content": "done"}
    messages = [*ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}, result]
    called = ask(client, messages=messages)["prompt_eval_count"]
    assert called > ask(client, messages=[*ASKED, {"role": "assistant", "content": ""}, result])["prompt_eval_count"]
    assert ask(client, tools=[TOOL])["prompt_eval_count"] > ask(client)["prompt_eval_count"]


def test_a_call_is_sent_whole(server: Any) -> None:
    """Two calls of a chat, whose arguments come in parts; the second is cut off."""
    answer = OllamaAnswer(SimpleNamespace(service=server.service), chat=True)  # type: ignore[arg-type]  # all it reads
    parts = [
        CallDelta(0, "call_a", CallFunction("rise", "")),
        CallDelta(0, None, CallFunction(None, '{"of": ')),
        CallDelta(0, None, CallFunction(None, '"sun"}')),
        CallDelta(1, "call_b", CallFunction("set", '{"of": "mo')),
    ]
    found = [line for part in parts for line in answer.push(ChunkChoice(ChunkDelta(tool_calls=[part])))]
    found += answer.push(ChunkChoice(finish_reason="length"))
    called, cut = (json.loads(line)["message"] for line in found)
    function = {"index": 0, "name": "rise", "arguments": {"of": "sun"}}
    assert called["tool_calls"] == [{"id": "call_a", "function": function}]
    assert cut == {"role": "assistant", "content": '{"of": "mo'}


def test_thinking_is_apart_from_the_text(server: Any) -> None:
    for chat in (True, False):
        answer = OllamaAnswer(SimpleNamespace(service=server.service), chat=chat)  # type: ignore[arg-type]  # all it reads
        found = answer.push(ChunkChoice(ChunkDelta(reasoning_content="Hm."))) + answer.push(
            ChunkChoice(ChunkDelta(content="Yes"))
        )
        thought, said = (json.loads(line) for line in found)
        if chat:
            assert thought["message"] == {"role": "assistant", "content": "", "thinking": "Hm."}
            assert said["message"] == {"role": "assistant", "content": "Yes"}
        else:
            assert (thought["response"], thought["thinking"], said["response"]) == ("", "Hm.", "Yes")


def test_a_model_is_loaded_by_an_empty_prompt(client: httpx.Client) -> None:
    loaded = client.post("/api/generate", json={"model": "stories:latest"})
    assert loaded.headers["content-type"] == "application/x-ndjson"
    assert (loaded.json()["done"], loaded.json()["done_reason"]) == (True, "load")
    loaded = client.post("/api/generate", json={"model": "stories", "prompt": None, "images": None, "stream": False})
    assert loaded.json()["response"] == ""
    loaded = client.post("/api/chat", json={"model": "stories", "messages": [], "stream": False})
    assert loaded.json()["message"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None), (0, 0), ("0", 0), ("0s", 0), (300, 300), (2.5, 2.5), ("5m", 300), ("1h30m", 5400), ("1.5h", 5400),
        ("250ms", 0.25), ("+3s", 3), ("90", 90), (-1, math.inf), ("-1", math.inf), ("-5m", math.inf), (1e300, math.inf),
        ("999999999999h", math.inf),
    ],
)  # fmt: skip
def test_durations_of_keep_alive(given: Any, seconds: float | None) -> None:
    assert seconds_of(given) == seconds


@pytest.mark.parametrize("given", ["", "m", "5 m", "5d", "1e3", "--1", "5m3", "\u0665m", "1" * 200 + "s", "nan"])
def test_what_is_not_a_duration(given: str) -> None:
    with pytest.raises(ApiError, match="keep_alive"):
        seconds_of(given)


def test_a_model_that_is_being_unloaded_is_not_loaded_to_be_unloaded(serve: Any) -> None:
    body = {"model": "stories", "keep_alive": 0, "stream": False}
    with serve() as served, served.client() as client:
        ask(client, keep_alive=-1)
        one, closing, closed = served.models.served[0], threading.Event(), threading.Event()
        close = one.service.close

        def close_later() -> None:
            closing.set()
            closed.wait(10)
            close()

        one.service.close = close_later
        assert client.post("/api/generate", json=body).json()["done_reason"] == "unload"
        assert closing.wait(10)
        assert client.post("/api/generate", json=body).json()["done_reason"] == "unload"
        closed.set()
        assert one.loads == 1


def test_a_model_is_kept_for_as_long_as_a_request_says(serve: Any) -> None:
    """A duration, for ever, and unloaded at once; a request that states nothing changes nothing."""

    def expires(client: httpx.Client) -> str:
        (one,) = client.get("/api/ps").json()["models"]
        return str(one["expires_at"])

    def unloaded(client: httpx.Client) -> None:
        end = time.monotonic() + 10
        while client.get("/api/ps").json()["models"]:
            assert time.monotonic() < end
            time.sleep(0.01)

    with serve() as served, served.client() as client:
        for path in ("/api/chat", "/api/generate"):
            ask(client, path, keep_alive="5m")
            left = datetime.fromisoformat(expires(client)) - datetime.now(UTC)
            assert 290 < left.total_seconds() <= 300
            ask(client, path)
            assert expires(client) < "2100"
            ask(client, path, keep_alive=-1)
            assert expires(client) > "2100"
            ask(client, path, keep_alive=0)
            unloaded(client)
        assert client.post("/api/embed", json={"model": "stories", "input": "x", "keep_alive": "0s"}).status_code == 501
        unloaded(client)
        ask(client)
        assert expires(client) > "2100"  # the server's own rule holds again
        for loads in 2 * [served.models.served[0].loads]:  # the second request finds it unloaded
            done = client.post("/api/generate", json={"model": "stories", "keep_alive": 0, "stream": False}).json()
            assert (done["done"], done["done_reason"], done["response"]) == (True, "unload", "")
            unloaded(client)
            assert served.models.served[0].loads == loads
        again = client.post("/api/chat", json={"model": "stories", "messages": [], "keep_alive": "0"})
        assert (again.headers["content-type"], again.json()["done_reason"]) == ("application/x-ndjson", "unload")


def test_a_model_that_is_there_is_pulled_already(client: httpx.Client) -> None:
    assert client.post("/api/pull", json={"name": "stories:latest"}).text == '{"status":"success"}\n'
    assert client.post("/api/pull", json={"model": "stories", "stream": False}).json() == {"status": "success"}
    refused = client.request("DELETE", "/api/delete", json={"model": "stories"})
    assert (refused.status_code, list(refused.json())) == (501, ["error"])
    assert client.head("/api/blobs/sha256:00").status_code == 501
    assert client.head("/").status_code == 200  # by which clients look for a server


def test_the_model_is_described(client: httpx.Client) -> None:
    entry, alias = client.get("/api/tags").json()["models"]
    assert (entry["name"], alias["name"], entry["details"]["format"]) == ("stories", "org/alias", "gguf")
    assert re.fullmatch("[0-9a-f]{64}", entry["digest"])
    assert entry["size"] > 100_000
    shown = client.post("/api/show", json={"model": "stories"}).json()
    assert shown["capabilities"][:2] == ["completion", "tools"]
    arch = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{arch}.context_length"] == 1024
    assert shown["model_info"]["general.parameter_count"] > 1_000_000
    (running,) = client.get("/api/ps").json()["models"]
    assert (running["context_length"], running["size_vram"]) == (1024, 0)
    assert re.fullmatch(r"\d+\.\d+\.\d+", client.get("/api/version").json()["version"])


@pytest.mark.parametrize(
    ("path", "fields", "status", "words"),
    [
        ("/api/chat", {"model": "llama3"}, 404, "llama3"),
        ("/api/generate", {"model": "llama3", "prompt": ""}, 404, "llama3"),
        ("/api/show", {"model": "llama3"}, 404, "llama3"),
        ("/api/chat", {"options": {"temperature": 9}}, 400, "temperature"),
        ("/api/chat", {"options": {"mirostat": 2}}, 400, "mirostat"),
        ("/api/chat", {"format": "yaml"}, 400, "format"),
        ("/api/chat", {"format": {"type": "x"}}, 400, "format: "),
        ("/api/generate", {"format": {"type": "x"}}, 400, "format: "),
        ("/api/chat", {"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs"),
        ("/api/show", {"model": ""}, 400, "model is missing"),
        ("/api/pull", {"model": None}, 400, "model is missing"),
        ("/api/chat", {"think": "very"}, 400, "think"),
        ("/api/generate", {"prompt": "x " * 4000, "raw": True}, 400, "context"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, 400, "images"),
        ("/api/generate", {"suffix": "x"}, 400, "suffix"),
        ("/api/generate", {"raw": True, "logprobs": True}, 400, "raw"),
        ("/api/embed", {"input": "x"}, 501, "no embeddings"),
        ("/api/embeddings", {"prompt": "x"}, 501, "no embeddings"),
        ("/api/pull", {"model": "llama3"}, 404, "llama3"),
        ("/api/copy", {"source": "stories", "destination": "x"}, 501, "bitnet pull"),
        ("/api/chat", {"keep_alive": "soon"}, 400, "keep_alive"),
        ("/api/generate", {"keep_alive": "5 minutes"}, 400, "keep_alive"),
        ("/api/none", {}, 404, "/api/none"),
    ],
)
def test_errors_are_sentences(client: httpx.Client, path: str, fields: dict[str, Any], status: int, words: str) -> None:
    answer = client.post(path, json={"model": "stories", "messages": ASKED, "prompt": "x", **fields})
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]


def test_openai_s_embeddings_are_refused_with_a_reason(client: httpx.Client) -> None:
    answer = client.post("/v1/embeddings", json={"model": "stories", "input": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_embeddings")


def test_a_model_without_a_file_is_described(serve: Any) -> None:
    """One that is synthetic, or whose file was deleted since."""
    with serve(lambda: bitnet_core.load("synthetic:tiny", "numpy")) as served, served.client() as client:
        name = client.get("/v1/models").json()["data"][0]["id"]
        for answer in (
            client.get("/api/tags"),
            client.get("/api/ps"),
            client.post("/api/show", json={"model": name}),
        ):
            assert answer.status_code == 200, answer.text
        assert client.get("/api/ps").json()["models"][0]["size"] > 0
