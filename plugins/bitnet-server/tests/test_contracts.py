"""Rules that clients of other servers rely on: offsets, control tokens, limits of tokens, long prompts, HTTP/1.0."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize("prompt", ["Once upon a time", "\u4f60\u597d \U0001f600!", "Hi<|eot_id|>Yes", [1, 50, 60]])
@pytest.mark.parametrize("stream", [False, True])
def test_offsets_point_into_the_text(
    client: httpx.Client, events: Any, complete: Any, prompt: Any, stream: bool
) -> None:
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 4, "temperature": 0}
    if stream:
        choices = [choice for document in events(client, COMPLETE, body)[0] for choice in document["choices"]]
    else:
        choices = [complete(**body)["choices"][0]]
    text = "".join(choice["text"] for choice in choices)
    scored = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    tokens = [token for scores in scored for token in scores["tokens"]]
    offsets = [at for scores in scored for at in scores["text_offset"]]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(text)
    for token, at in zip(tokens, offsets, strict=True):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert text[at : at + len(token)] == token


def test_control_tokens_in_a_completions_prompt(client: httpx.Client, complete: Any) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    chat = client.post(CHAT, json={"messages": messages, "max_tokens": 8, "temperature": 0}).json()
    parsed, spelled = complete(prompt), complete(prompt, parse_special=False)
    assert parsed["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"] < spelled["usage"]["prompt_tokens"]
    assert parsed["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert complete("<|begin_of_text|>Once")["usage"] == complete("Once")["usage"]


def test_the_text_of_a_control_token_stops(client: httpx.Client, complete: Any) -> None:
    (token,) = client.post("/tokenize", json={"content": "<|eot_id|>", "parse_special": True}).json()["tokens"]
    body = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True, "logit_bias": {str(token): 100}}
    assert complete(**body)["choices"][0]["finish_reason"] == "length"
    assert complete(**body, stop=["<|eot_id|>"])["choices"][0]["finish_reason"] == "stop"


def test_max_tokens_of_minus_one_is_the_room(client: httpx.Client, complete: Any) -> None:
    long = "Once upon a time there was. " * 120
    for answer in (
        complete(long, max_tokens=-1, ignore_eos=True),
        client.post(
            CHAT,
            json={"messages": [{"role": "user", "content": long}], "max_tokens": -1, "ignore_eos": True},
        ).json(),
    ):
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] > 32


@pytest.mark.parametrize("words", [3000, 400_000])
def test_a_prompt_that_is_too_long(client: httpx.Client, words: int) -> None:
    text = "word " * words
    for path, body in ((COMPLETE, {"prompt": text}), (CHAT, {"messages": [{"role": "user", "content": text}]})):
        answer = client.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["message"].startswith("This model's maximum context length is 1024 tokens")


def test_the_oldest_turns_are_left_out_if_that_is_asked(client: httpx.Client) -> None:
    turn = {"role": "user", "content": "Tell me of the cat and the dog. " * 10}
    messages = [
        {"role": "system", "content": "Be brief."},
        *[turn, {"role": "assistant", "content": "Yes."}] * 20,
        turn,
    ]
    body = {"messages": messages, "max_tokens": 8, "temperature": 0}
    assert client.post(CHAT, json=body).status_code == 400
    answer = client.post(CHAT, json={**body, "truncation": "auto"}).json()
    assert 700 < answer["usage"]["prompt_tokens"] <= 1024 - 8
    short = {"messages": messages[-1:], "max_tokens": 8, "temperature": 0}
    texts = [client.post(CHAT, json={**short, "truncation": how}).json()["usage"] for how in ("auto", "disabled")]
    assert texts[0]["prompt_tokens"] == texts[1]["prompt_tokens"]
    huge = {"messages": [{"role": "user", "content": "word " * 3000}], "truncation": "auto"}
    assert client.post(CHAT, json=huge).json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_knows_no_chunks(server: Any, stream: bool) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 3, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        head = b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        client.sendall(head + body)
        client.settimeout(20)
        data = b""
        while part := client.recv(65536):
            data += part
    head, _, text = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    if stream:
        assert text.startswith(b"data: {")
        assert text.endswith(b"data: [DONE]\n\n")
    else:
        assert len(json.loads(text)["choices"]) == 1


def test_unsupported_parts_of_tools_are_named_in_a_header(client: httpx.Client) -> None:
    parameters = {"type": "object", "properties": {"a": {"not": {"const": 1}}}}
    function = {"name": "f", "parameters": parameters}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": function}]}
    answer = client.post(CHAT, json={**body, "max_tokens": 2})
    assert (answer.status_code, answer.headers["x-tools-not-enforced"]) == (200, "tools[0] (f): not")
    function["strict"] = True
    answer = client.post(CHAT, json={**body, "max_tokens": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert "tools[0] (f)" in answer.json()["error"]["message"]
