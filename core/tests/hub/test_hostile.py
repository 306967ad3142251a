"""A hostile hub on the loopback: nothing outside the repository's cache is touched, and every answer is bounded."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

DATA = b"GGUF" + bytes(4092)
NAME = "m-i2_s.gguf"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHA256 = hashlib.sha256(DATA).hexdigest()
LFS = {"sha256": SHA256, "size": len(DATA), "pointerSize": 9}


class HostileHub(ThreadingHTTPServer):
    """A hub that lies. info, headers: override the description and the head of the file. mode: see Requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.info: dict[str, Any] = {}
        self.files: list[Any] = [{"rfilename": NAME, "size": len(DATA), "lfs": LFS}]
        self.headers: dict[str, str] = {}
        self.mode = ""


class Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HostileHub

    def log_message(self, *args: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:  # the client has left
            self.close_connection = True

    def do_HEAD(self) -> None:
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{SHA256}"', "Content-Length": str(len(DATA))}
        self._head({**headers, **self.server.headers})

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):
            self._describe(self.server.mode)
        else:
            self._give(self.server.mode)

    def _describe(self, mode: str) -> None:
        if mode == "silent head":
            time.sleep(30)
        elif mode == "head trickle":
            for byte in b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 300:
                self.wfile.write(bytes([byte]))
                time.sleep(0.1)
        elif mode == "endless answer":
            self._endless(b" " * 65536, 0)
        elif mode == "trickled answer":
            self._endless(b" ", 0.05)
        elif mode == "junk":
            self._send(b'{"siblings": [3, {"rfilename": null}], "sha": ')
        elif mode == "deep":
            self._send(b"[" * 200_000)
        elif mode == "bomb":
            self._send(gzip.compress(bytes(100 << 20)), {"Content-Encoding": "gzip"})
        else:
            info = {"id": "o/m", "sha": COMMIT, "siblings": self.server.files, **self.server.info}
            self._send(json.dumps(info).encode())

    def _give(self, mode: str) -> None:
        if mode == "trickled file":
            self._endless(b" ", 0.05)
        elif mode == "longer file":
            self._endless(DATA, 0)
        elif mode == "bomb file":
            self._send(gzip.compress(DATA + bytes(100 << 20)), {"Content-Encoding": "gzip"})
        elif mode == "to a file":
            self._head({"Location": "file:///etc/passwd", "Content-Length": "0"}, 302)
        else:
            self._send(DATA)

    def _head(self, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._head({"Content-Length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _endless(self, part: bytes, pause: float) -> None:
        self._head({"Connection": "close"})
        end = time.monotonic() + 60
        while time.monotonic() < end:
            self.wfile.write(part)
            time.sleep(pause)


@pytest.fixture
def hub() -> Iterator[HostileHub]:
    server = HostileHub()
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def environment(hub: HostileHub, folder: Path) -> dict[str, str]:
    return {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(folder / "hf")}


def pull(hub: HostileHub, folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from bitnet_core.cli.app import main; main()"
    command = [sys.executable, "-c", code, "pull", "hf:o/m"]
    return subprocess.run(command, env=environment(hub, folder), capture_output=True, text=True, timeout=90)


def assert_one_error(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 3, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("bitnet: error: hf:o/m: ")]
    assert len(errors) == 1, done.stderr
    assert words in errors[0]
    assert "Traceback" not in done.stderr


def test_the_honest_answer_is_taken(hub: HostileHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == DATA


@pytest.mark.parametrize(
    ("header", "place"),
    [
        *(("ETag", place) for place in ("{victim}", "../../../../victim", "../../..", "W//{victim}", "a/b", "")),
        ("X-Linked-Etag", "{victim}"),
        ("X-Repo-Commit", "../../../../victim"),
        ("X-Repo-Commit", "main"),
    ],
)
def test_a_header_never_names_a_place(hub: HostileHub, tmp_path: Path, header: str, place: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    before = sorted(path for path in tmp_path.rglob("*"))
    hub.headers[header] = f'"{place.format(victim=victim)}"'
    assert_one_error(pull(hub, tmp_path), f"the hub's {header} is")
    assert victim.read_text() == "precious"
    outside = [path for path in tmp_path.rglob("*") if path not in before and "hf" not in path.parts]
    assert outside == []
    assert not list((tmp_path / "hf").rglob("*.gguf"))


def test_a_link_in_the_cache_to_a_file_of_the_user_s_is_not_followed(hub: HostileHub, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    blobs = tmp_path / "hf" / "hub" / "models--o--m" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / SHA256).symlink_to(victim)
    assert_one_error(pull(hub, tmp_path), "outside of")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("endless answer", "the hub sends more than the 8.0 MiB that are expected"),
        ("junk", "the hub's answer makes no sense"),
        ("deep", "the hub's answer makes no sense"),
        ("bomb", "the hub compresses its answer"),
        ("longer file", "the hub sends more than the 4.0 KiB that are expected"),
        ("bomb file", "the hub compresses its answer"),
        ("to a file", "the hub redirects to 'file:///etc/passwd'"),
    ],
)
def test_an_answer_is_bounded_and_junk_is_one_clear_error(
    hub: HostileHub, tmp_path: Path, mode: str, words: str
) -> None:
    hub.mode = mode
    began = time.monotonic()
    assert_one_error(pull(hub, tmp_path), words)
    assert time.monotonic() - began < 60
    assert sum(path.stat().st_size for path in (tmp_path / "hf").rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("silent head", "did not begin its answer within 2 s"),
        ("head trickle", "did not begin its answer within 2 s"),
        ("trickled answer", "the hub sends fewer than"),
        ("trickled file", "the hub sends fewer than"),
    ],
)
def test_silence_and_a_trickle_end(hub: HostileHub, tmp_path: Path, mode: str, words: str) -> None:
    hub.mode = mode
    code = (
        "from bitnet_core.hub import bounds; bounds.HEAD_SECONDS = bounds.WINDOW_SECONDS = 2.0\n"
        "from bitnet_core.hub.fetch import main; main('hf:o/m')"
    )
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}  # stdin stays open: the child ends with its parent
    with subprocess.Popen(command, env=environment(hub, tmp_path), text=True, **pipes) as child:
        assert child.stdout is not None
        kind, text = json.loads(child.stdout.read().splitlines()[-1])
    assert kind == "ModelError"
    assert text.startswith("hf:o/m: ")
    assert words in text


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"sha": "../../evil"}, "does not name the commit"),
        ({"sha": None}, "does not name the commit"),
        ({"sha": 7}, "does not name the commit"),
        ({"siblings": 3}, "makes no sense"),
        ({"siblings": [{"rfilename": NAME, "size": -5}]}, "announces -5 bytes"),
        ({"siblings": [{"rfilename": NAME, "size": "many"}]}, "announces 'many' bytes"),
        ({"siblings": [{"rfilename": NAME}]}, "does not announce the size"),
        ({"siblings": [{"rfilename": NAME, "size": 1, "lfs": {**LFS, "sha256": ".."}}]}, "SHA-256"),
        ({"siblings": [{"rfilename": ["x"], "size": 1}]}, ""),
        ({"siblings": [None]}, ""),
    ],
)
def test_a_senseless_description_is_one_clear_error(
    hub: HostileHub, tmp_path: Path, info: dict[str, Any], words: str
) -> None:
    hub.info = info
    done = pull(hub, tmp_path)
    assert done.returncode == 3, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["\x1b[2J\x07a\n\nERROR-i2_s.gguf", "a\u202eb-i2_s.gguf", "x" * 5000 + "-i2_s.gguf"])
def test_names_that_cannot_be_shown_are_not_shown(hub: HostileHub, tmp_path: Path, name: str) -> None:
    hub.files.append({**hub.files[0], "rfilename": name})
    done = pull(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    hub.files.pop(0)
    alone = pull(hub, tmp_path / "other")
    assert alone.returncode == 3
    shown = done.stdout + done.stderr + alone.stdout + alone.stderr
    assert not any(c in shown for c in "\x1b\x07\u202e")
    assert "ERROR-i2_s" not in shown
    assert len(shown) < 3000


def test_the_program_s_own_use_of_the_hub_is_not_changed(hub: HostileHub, tmp_path: Path) -> None:
    code = (
        "import huggingface_hub as h, os; before = h.get_session(); env = dict(os.environ)\n"
        "from bitnet_core.hub import Reference, pull; pull(Reference('o/m'), lambda _: None)\n"
        "assert h.get_session() is before and dict(os.environ) == env\n"
        "assert not h.utils.are_progress_bars_disabled()"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(hub, tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
