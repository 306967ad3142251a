"""`bitnet bench --server` against a server."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from typing import Any

import pytest
from bitnet_core.cli.app import main
from bitnet_core.measure.server import measure_server
from bitnet_hal.errors import UsageError
from bitnet_server.protocol import GuardedProtocol


def test_a_server_is_measured(server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--server", server.url, "-s", "3", "-p", "8", "-n", "5", "--repeat", "2", "--json"]
    monkeypatch.setattr(sys, "argv", ["bitnet", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    document = json.loads(capsys.readouterr().out)
    assert (document["requests"], document["errors"], document["tokens"]) == (6, 0, 30)
    assert document["ttft_ms"]["p95"] >= document["ttft_ms"]["p50"] > 0
    assert document["tokens_per_second"] > 0


def test_errors_are_counted(serve: Any) -> None:
    with serve(max_queue=0) as served:
        result = measure_server(served.url, 1, 2, 3000, 5)
    assert [text.startswith("status 400") for text in result.errors] == [True, True]
    assert result.document()["tokens"] == 0


def test_clients_keep_their_connections(served_connections: list[object], server: Any) -> None:
    result = measure_server(server.url, 2, 6, 3, 4)
    assert (len(result.errors), len(served_connections)) == (0, 2)


@pytest.fixture
def served_connections(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The connections that the server accepts."""
    made: list[object] = []
    before = GuardedProtocol.connection_made

    def connection_made(self: GuardedProtocol, transport: Any) -> None:
        made.append(transport)
        before(self, transport)

    monkeypatch.setattr(GuardedProtocol, "connection_made", connection_made)
    return made


class Terse(http.server.BaseHTTPRequestHandler):
    """Another program's server, which tells no usage."""

    def do_GET(self) -> None:
        self._answer(b'{"data": [{"id": "it"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        chunks = [{"choices": [{"text": text}]} for text in ("one", " two", "")]
        self._answer(
            b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
        )

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_chunks_are_counted_where_no_usage_is_told() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Terse) as terse:
        threading.Thread(target=terse.serve_forever, daemon=True).start()
        document = measure_server(f"http://127.0.0.1:{terse.server_port}", 2, 3, 1, 9).document()
        terse.shutdown()
    assert (document["errors"], document["tokens"]) == (0, 6)


@pytest.mark.parametrize("url", ["ftp://x", "nothing", "http://127.0.0.1:9"])
def test_nothing_there(url: str) -> None:
    with pytest.raises(UsageError):
        measure_server(url, 1, 1, 1, 1)
