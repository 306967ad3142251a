"""Who may ask, and what may be sent: hosts, origins, keys, sizes, times."""

from __future__ import annotations

import json
import logging
import socket
import time
from typing import Any

import httpx
import pytest
from bitnet_server import protocol
from bitnet_server.chat import ChatCall

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}


def raw(port: int, request: bytes, timeout: float = 5) -> bytes:
    """Everything that a server says to some bytes until it closes the connection or is silent."""
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.settimeout(timeout)
        answer = b""
        try:
            connection.sendall(request)
            while part := connection.recv(65536):
                answer += part
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
    return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([], 400),
        (["localhost", "localhost"], 400),
        (["localhost"], 200),
        (["LOCALHOST:8080"], 200),
        (["127.0.0.1:1"], 200),
        (["127.9.9.9"], 200),
        (["[::1]:80"], 200),
        (["evil.example"], 400),
        (["localhost.evil.example"], 400),
        (["127.0.0.1.evil.example"], 400),
        (["localhost@evil.example"], 400),
        ([""], 400),
        (["0.0.0.0"], 400),
    ],
)
def test_host_names(server: Any, hosts: list[str], expected: int) -> None:
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    answer = raw(server.port, f"GET /health HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
    assert status(answer) == expected
    if expected == 400:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("http://127.0.0.1", True),
        ("https://[::1]:5", True),
        ("http://evil.example", False),
        ("http://localhost.evil.example", False),
        ("null", False),
        ("http://[", False),
    ],
)
def test_origins(client: httpx.Client, origin: str, allowed: bool) -> None:
    headers = {"origin": origin, "content-type": "text/plain"}
    answer = client.post(CHAT, content=json.dumps(BODY), headers=headers)
    assert answer.status_code == (200 if allowed else 403)
    assert answer.headers.get("access-control-allow-origin") == (origin if allowed else None)
    assert "access-control-allow-credentials" not in answer.headers
    assert "Origin" in answer.headers["vary"]


def test_keys_hosts_and_origins_of_ones_own(serve: Any) -> None:
    options = {"api_keys": ("one", "two"), "allowed_hosts": ("host.docker.internal",), "cors_origins": ("http://a.b",)}
    with serve(**options) as served, served.client() as client:
        refused = client.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"
        for headers in ({"authorization": "Bearer two"}, {"authorization": "bearer one"}, {"x-api-key": "one"}):
            assert client.get("/v1/models", headers=headers).status_code == 200
        for headers in ({"authorization": "Bearer on"}, {"authorization": "Basic one"}, {"x-api-key": ""}):
            assert client.get("/v1/models", headers=headers).status_code == 401
        for path in ("/", "/health", "/health/live", "/health/ready", "/metrics", "/static/app.css"):
            assert client.get(path).status_code in (200, 404)
        assert client.get("/health", headers={"host": "host.docker.internal:8080"}).status_code == 200
        asked = {"origin": "http://a.b", "access-control-request-method": "POST"}
        preflight = client.options(CHAT, headers={**asked, "access-control-request-headers": "authorization"})
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (204, "http://a.b")
        assert preflight.headers["access-control-allow-headers"] == "authorization"
        assert client.options(CHAT, headers={**asked, "origin": "http://c.d"}).status_code == 403


def test_bodies_are_bounded(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(max_body=1000, body_timeout=0.3) as served, served.client() as client:
        for content in (b"x" * 2000, iter([b"x" * 600, b"x" * 600])):
            answer = client.post(CHAT, content=content)
            assert (answer.status_code, answer.json()["error"]["type"]) == (413, "invalid_request_error")
        assert client.post(CHAT, content=b"x", headers={"content-encoding": "gzip"}).status_code == 400
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode()
        assert status(raw(served.port, head, 2)) == 408


def test_heads_are_bounded(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    many = b"".join(b"x-%d: %s\r\n" % (i, b"y" * 1000) for i in range(100))
    assert status(raw(server.port, begin + many + b"\r\n")) == 431
    assert status(raw(server.port, begin + b"x: " + b"y" * 200_000)) == 431
    assert status(raw(server.port, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 431
    assert status(raw(server.port, b"\x16\x03\x01 hello\r\n\r\n")) == 400
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    for slow in (b"", b"GET /hea", begin):
        began = time.monotonic()
        assert status(raw(server.port, slow)) == 408
        assert time.monotonic() - began < 3


def test_connections_are_bounded(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_CONNECTIONS", 3)
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(6)]
    time.sleep(0.2)
    assert raw(server.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 1) == b""
    for connection in held:
        connection.close()


def test_connections_are_used_again_and_pipelined(server: Any) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert raw(server.port, one * 3, 1).count(b"HTTP/1.1 200 OK") == 3


def test_an_offer_of_another_protocol_is_ignored(server: Any) -> None:
    """Java's HTTP client sends these headers with every request of a connection."""
    body = b'{"content": "a"}'
    head = b"POST /tokenize HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: localhost\r\n"
    offer = b"HTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        for _ in range(2):
            connection.sendall(head + offer + body)
            assert status(connection.recv(65536)) == 200


def test_a_wrong_method_is_told_the_right_ones(client: httpx.Client) -> None:
    assert client.get(CHAT).headers["allow"] == "POST"
    assert set(client.post("/v1/responses/resp_1").headers["allow"].split(", ")) == {"DELETE", "GET", "HEAD"}


def test_request_ids(client: httpx.Client) -> None:
    assert client.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for strange in ("a b", "x" * 200, "a;b"):
        assert client.get("/health", headers={"x-request-id": strange}).headers["x-request-id"] != strange
    answer = client.get("/health")
    assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert "server" not in answer.headers


def test_the_page_is_closed(client: httpx.Client) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path in ("/static/..%2fapp.py", "/static/../app.py", "/static/%2e%2e/app.py", "/static/nothing.js"):
        assert client.get(path).status_code == 404


HOSTILE = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"[" * 200_000,
    b'{"messages":' * 50_000,
    b'{"messages": NaN}',
    b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}',
    b'{"messages":[{"role":"user","content":"x"}],"temperature":Infinity}',
    b'{"messages":[{"role":"user","content":"\\ud800"}],"max_tokens":"x"}',
    b'{"messages":[{"role":"user","content":"x"}],"max_tokens":' + b"9" * 5000 + b"}",
    '{"messages":[{"role":"user","content":"x"}]}'.encode("utf-16"),
    b"\xff\xfe\x00",
    b'{"messages":[{"role":"user","content":"\xff"}]}',
    b'{"messages":[{"role":"user","content":"x"}],"n":-1}',
    b'{"messages":[{"role":"user","content":"x"}],"logit_bias":[1]}',
    b'{"messages":{"role":"user"}}',
    b'{"messages":[{"role":"user","content":"x"}],"stop":[[]]}',
    b'{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a b"}}]}',
    b'{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object","schema":'
    + b'{"items":' * 500
    + b"{}"
    + b"}" * 502,
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_bodies(client: httpx.Client, number: int) -> None:
    answer = client.post(CHAT, content=HOSTILE[number])
    assert answer.status_code == 400, answer.text
    assert len(answer.json()["error"]["message"]) < 2000


def test_failures_tell_nothing_to_the_client(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("secret path /etc/x")

    monkeypatch.setattr(ChatCall, "generations", fail)
    with caplog.at_level(logging.ERROR):
        answer = client.post(CHAT, json=BODY, headers={"x-request-id": "find-me"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert "secret" not in answer.text
    end = time.monotonic() + 5
    while "find-me" not in caplog.text and time.monotonic() < end:
        time.sleep(0.01)  # it is logged after the answer
    assert "find-me" in caplog.text


def test_logs_hold_no_prompts(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG),  # until the server has ended: it logs a request after its answer
        serve(log_requests=True, api_keys=("hush",)) as served,
        served.client() as client,
    ):
        body = {"messages": [{"role": "user", "content": "my secret words"}], "max_tokens": 1}
        client.post(CHAT + "?q=query-secret", json=body, headers={"authorization": "Bearer hush"})
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("bitnet"))
    assert f"POST {CHAT} 200" in ours
    for secret in ("secret", "hush"):
        assert secret not in ours
