"""Limits on what a client may write: size before work, no 500, no hanging handler."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer.chat import ChatTemplate
from bitnet_server import chat
from bitnet_server.completions import CompletionFormatter
from bitnet_server.protocols import messages, ollama, paths, responses

CHAT = "/v1/chat/completions"


def test_a_long_chat_is_refused_before_work(client: httpx.Client) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 15_000_000}]})
    began = time.monotonic()
    answer = client.post(CHAT, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("end", ["<|eot_id|>", "<|eot_id|"])
def test_private_use_characters_are_refused(client: httpx.Client, end: str) -> None:
    every = "".join(map(chr, range(0xF0000, 0xFFFFE))) + end
    answer = client.post(CHAT, json={"messages": [{"role": "user", "content": every}]})
    assert answer.status_code == 400


def test_a_template_that_rejects_its_messages_is_no_failure(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "a"}] * 4096
    assert client.post(CHAT, json={"messages": messages}).status_code == 400


def test_one_request_cannot_bring_more_than_the_queue_holds(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": ["a"] * 64, "n": 32, "max_tokens": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


def test_detokenize_knows_its_tokens(client: httpx.Client) -> None:
    for token in (1_000_000, 1 << 63):
        answer = client.post("/detokenize", json={"tokens": [5, token]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")
    assert client.post("/detokenize", json={"tokens": []}).json() == {"content": "", "prompt": ""}


def talk(port: int, data: bytes, more: bytes = b"", times: int = 0) -> bytes:
    """Send to the server; returns its first answer, b"" for a closed connection."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(10)
        try:
            client.sendall(data)
            for _ in range(times):
                client.sendall(more)
            return client.recv(65536)
        except ConnectionError:
            return b""


def test_separators_of_a_head_count(server: Any) -> None:
    lines = b"".join(b"a%d:\r\n" % at for at in range(12_000))
    answer = talk(server.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")
    assert answer[:12] in (b"HTTP/1.1 431", b"")


@pytest.mark.parametrize("kind", ["extensions", "trailers"])
def test_what_surrounds_a_body_counts(server: Any, kind: str) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    begin, more = (
        (b"1;x=", b"y" * 60_000) if kind == "extensions" else (b"2\r\n{}\r\n0\r\n", b"a: " + b"y" * 9000 + b"\r\n")
    )
    assert talk(server.port, head + begin, more, 100)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")
    small = b"".join(b"1\r\n%c\r\n" % byte for byte in json.dumps({"content": "Once " * 2000}).encode())
    assert talk(server.port, head + small + b"0\r\n\r\n")[:12] == b"HTTP/1.1 200"


def test_a_body_that_is_announced_too_long_is_not_asked_for(server: Any) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n"
    assert talk(server.port, head).startswith(b"HTTP/1.1 413")


def test_a_client_that_leaves_while_it_sends_is_no_error(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    for path in (b"/tokenize", b"/v1/completions", b"/detokenize"):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{")
            time.sleep(0.2)
    time.sleep(0.5)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_reader_that_stalls_is_given_up_quietly(
    serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CompletionFormatter, "start", lambda _: [b"x" * 16_000_000])
    data = json.dumps({"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}).encode()
    with serve(send_timeout=1.0) as served, socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data))
        client.sendall(data)
        end = time.monotonic() + 30
        while not served.service.counts.requests:
            assert time.monotonic() < end
            time.sleep(0.05)
        served.idle(30)
        time.sleep(1)
        client.settimeout(5)
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := client.recv(1 << 20):
                received = part
        assert received
        assert b"[DONE]" not in received
    assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_a_template_that_fails_is_the_messages_fault(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TokenizerError("the chat template of the model fails: it writes more than 5 characters")

    monkeypatch.setattr(ChatTemplate, "render", fails)
    for path in (CHAT, "/apply-template"):
        answer = client.post(path, json={"messages": [{"role": "user", "content": "a"}]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")


def large(path: str) -> dict[str, Any]:
    """A valid body of more than a megabyte."""
    tool = {"name": "f", "parameters": {"type": "object", "description": "x" * 1_200_000}}
    said = {"model": "stories", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "stream": False}
    if path == "/v1/responses":
        return {"input": "Hi", "max_output_tokens": 16, "tools": [{"type": "function", **tool}]}
    if path == "/v1/messages":
        return {**said, "tools": [{"name": "f", "input_schema": tool["parameters"]}]}
    return {**said, "tools": [{"type": "function", "function": tool}]}


@pytest.mark.parametrize(
    ("path", "slow"),
    [
        (CHAT, "parse"),
        (CHAT, "generation_requests"),
        ("/v1/responses", "parse"),
        ("/v1/messages", "check_common"),
        ("/api/chat", "check_common"),
    ],
)
def test_a_large_body_holds_nobody(server: Any, monkeypatch: pytest.MonkeyPatch, path: str, slow: str) -> None:
    """Neither while it is parsed, nor while its request is built; and the threads of other requests stay free."""
    held = threading.Event()
    modules = [paths, chat, responses, messages, ollama] if slow == "parse" else [chat]

    def slowly(real: Any, *arguments: Any, **options: Any) -> Any:
        if not held.is_set() and (slow != "parse" or len(arguments[0]) > 1_000_000):
            held.set()
            time.sleep(3)
        return real(*arguments, **options)

    for module in modules:
        if hasattr(module, slow):
            monkeypatch.setattr(module, slow, partial(slowly, getattr(module, slow)))
    body = json.dumps(large(path))
    with ThreadPoolExecutor(1) as pool, server.client() as client, server.client() as neighbour:
        answer = pool.submit(client.post, path, content=body)
        assert held.wait(20)
        began = time.monotonic()
        streamed = neighbour.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2, "stream": True})
        assert streamed.status_code == 200
        told = neighbour.post(CHAT, json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})
        assert told.status_code == 200
        assert time.monotonic() - began < 2
        assert answer.result().status_code == 200, answer.result().text
