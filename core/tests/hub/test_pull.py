"""`hf:` models from an imitation of the hub on the loopback: choice, resumption, the cached copy, and every failure."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from bitnet_core.errors import ModelError
from bitnet_core.hub import fetch
from bitnet_core.hub.reference import Reference
from bitnet_core.units import size
from bitnet_hal.errors import UsageError

UNTIED = Path(__file__).parents[1] / "golden" / "qwen3" / "qwen3-untied"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
GGUF = "tiny-PQ2_0.gguf"


class Hub(ThreadingHTTPServer):
    """An imitation of the hub. files: of the repository tiny/model. break_at: bytes of a file after which the
    connection breaks, once."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.files: dict[str, bytes] = {}
        self.sha256: dict[str, str] = {}
        self.refusal: tuple[int, str] | None = None
        self.break_at: int | None = None
        self.size: int | None = None  # announced, in place of the true one
        self.log: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        self.server.log.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if self.server.refusal:
            status, code = self.server.refusal
            self._send(status, b"", {"X-Error-Code": code} if code else {})
        elif path.startswith("/api/models/tiny/model"):
            revision = path.rpartition("/revision/")[2] if "/revision/" in path else "main"
            self._send(*self._info(revision), {})
        elif path.startswith("/tiny/model/resolve/"):
            revision, _, name = path.removeprefix("/tiny/model/resolve/").partition("/")
            self._file(name, body)
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _info(self, revision: str) -> tuple[int, bytes]:
        if revision not in ("main", COMMIT):
            return 404, b""
        siblings = [
            {
                "rfilename": name,
                "size": self.server.size or len(data),
                "lfs": {"sha256": self._sha256(name), "size": len(data), "pointerSize": 100},
            }
            for name, data in self.server.files.items()
        ]
        return 200, json.dumps({"id": "tiny/model", "sha": COMMIT, "siblings": siblings}).encode()

    def _sha256(self, name: str) -> str:
        return self.server.sha256.get(name) or hashlib.sha256(self.server.files[name]).hexdigest()

    def _file(self, name: str, body: bool) -> None:
        data = self.server.files.get(name)
        if data is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{self._sha256(name)}"', "Accept-Ranges": "bytes"}
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        status = 206 if start else 200
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cut, self.server.break_at = (self.server.break_at, None) if body else (None, self.server.break_at)
        self._send(status, data[start:], headers, cut if body else 0)

    def _send(self, status: int, body: bytes, headers: dict[str, str], keep: int | None = None) -> None:
        if status == 404 and "X-Error-Code" not in headers:
            headers = {"X-Error-Code": "RevisionNotFound"}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body if keep is None else body[:keep])
            self.close_connection = keep is not None


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    server.files = {GGUF: (UNTIED / "PQ2_0.gguf").read_bytes(), "README.md": b"a model"}
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bitnet(hub: Hub, tmp_path: Path) -> Run:
    """bitnet(*arguments, **environment) runs the program with the hub and an empty cache."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        code = "from bitnet_core.cli.app import main; main()"
        env = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **environment,
        }
        return subprocess.run([sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True)

    return run


def downloads(hub: Hub) -> list[str]:
    return [line for line in hub.log if line.startswith("GET /tiny/model/resolve")]


def test_a_model_is_fetched_once_found_again_and_listed(hub: Hub, bitnet: Run) -> None:
    done = bitnet("pull", "hf:tiny/model")
    assert done.returncode == 0, done.stderr
    assert f"hf:tiny/model: {size(len(hub.files[GGUF]))} in 1 file ({GGUF}, PQ2_0)" in done.stderr
    path = Path(done.stdout.strip())
    assert path.read_bytes() == hub.files[GGUF]
    assert len(downloads(hub)) == 1
    shown = bitnet("inspect", "hf:tiny/model", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["config"]["arch"] == "qwen3"
    assert len(downloads(hub)) == 1
    listed = json.loads(bitnet("models", "--json").stdout)["here"]
    assert [(model["reference"], model["form"], model["commit"]) for model in listed] == [
        ("hf:tiny/model", "PQ2_0", COMMIT)
    ]
    assert "hf:tiny/model" in bitnet("models").stdout


def test_without_a_connection_the_copy_serves(hub: Hub, bitnet: Run, tmp_path: Path) -> None:
    assert "not reachable" in bitnet("pull", "hf:tiny/model", HF_HUB_OFFLINE="1").stderr
    assert bitnet("pull", "hf:tiny/model").returncode == 0
    hub.log.clear()
    for name in ("hf:tiny/model", f"hf:tiny/model:{GGUF}", f"hf:tiny/model@{COMMIT[:12]}"):
        done = bitnet("inspect", name, HF_HUB_OFFLINE="1")
        assert done.returncode == 0, done.stderr
        assert f"using the cached copy ({COMMIT[:12]})" in done.stderr
    nowhere = bitnet("inspect", "hf:tiny/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert nowhere.returncode == 0, nowhere.stderr
    assert hub.log == []


def test_a_broken_download_goes_on_where_it_was(hub: Hub, bitnet: Run) -> None:
    hub.files[GGUF] = bytes(24 << 20)  # huggingface_hub writes 10 MiB at a time
    hub.break_at = 22 << 20
    first = bitnet("pull", "hf:tiny/model")
    done = first if first.returncode == 0 else bitnet("pull", "hf:tiny/model")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == hub.files[GGUF]
    starts = [int(line.rpartition("bytes=")[2].rstrip("-")) for line in downloads(hub) if "bytes=" in line]
    assert any(start >= 20 << 20 for start in starts), hub.log


def test_a_folder_is_fetched_whole_and_keeps_its_name(hub: Hub, bitnet: Run, tmp_path: Path) -> None:
    hub.files = {file.name: file.read_bytes() for file in (UNTIED / "mlx").iterdir()} | {"README.md": b"x"}
    done = bitnet("inspect", "hf:tiny/model", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["format"] == "MLX safetensors, ternary 2-bit packs"
    assert found["config"]["name"] == "model"
    assert not any("README" in line for line in downloads(hub))
    converted = bitnet("convert", "hf:tiny/model", str(tmp_path / "m.gguf"), "--to", "q2_0")
    assert converted.returncode == 0, converted.stderr


@pytest.mark.parametrize(
    ("refusal", "name", "words"),
    [
        ((403, "GatedRepo"), "hf:tiny/model", "access is restricted; accept its terms at http"),
        ((401, "RepoNotFound"), "hf:tiny/model", "no such repository, or it is private"),
        ((401, ""), "hf:tiny/model", "the hub answered 401"),
        ((503, ""), "hf:tiny/model", "the hub answered 503"),
        (None, "hf:tiny/other", "no such repository"),
        (None, "hf:tiny/model:other.gguf", "has no file 'other.gguf'; it has tiny-PQ2_0.gguf"),
        (None, "hf:tiny/model@v9", "no revision 'v9'"),
    ],
)
def test_each_failure_is_one_clear_error(
    hub: Hub, bitnet: Run, refusal: tuple[int, str] | None, name: str, words: str
) -> None:
    hub.refusal = refusal
    done = bitnet("pull", name)
    assert done.returncode == 3
    errors = [line for line in done.stderr.splitlines() if line.startswith("bitnet: error:")]
    assert len(errors) == 1
    assert words in errors[0]
    assert "Traceback" not in done.stderr


def test_a_damaged_download_is_removed(hub: Hub, bitnet: Run, tmp_path: Path) -> None:
    hub.sha256[GGUF] = "0" * 64
    done = bitnet("pull", "hf:tiny/model")
    assert done.returncode == 3
    assert "arrived damaged" in done.stderr
    assert not list((tmp_path / "hf").rglob("*.gguf"))
    assert not list((tmp_path / "hf").rglob("0" * 64))


def test_too_small_a_disk_is_seen_before(hub: Hub, bitnet: Run) -> None:
    hub.size = 1 << 60
    done = bitnet("pull", "hf:tiny/model")
    assert done.returncode == 3
    assert "needs 1073741824.0 GiB and" in done.stderr
    assert "are free in" in done.stderr
    assert downloads(hub) == []


def test_a_disk_that_fills_up_is_named() -> None:
    library = fetch.library()
    with (
        pytest.raises(ModelError, match=r"hf:a/b: the disk is full in .*; make room"),
        fetch._explained(Reference("a/b"), library),
    ):
        raise OSError(28, "No space left on device")


def test_the_process_that_downloads_ends_with_its_parent() -> None:
    """Even if that is killed, and can end nothing itself: its end of the pipe closes."""
    code = "import time; from bitnet_core.hub.process import serve; serve('hf:a/b', lambda *_: time.sleep(60))"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        child.stdin.close()
        assert child.wait(20) == 1


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r'pip install ./hal "./core\[hub\]"'):
        fetch.local("hf:a/b", print)
    assert fetch.local("model.gguf", print) == "model.gguf"


def test_a_file_of_that_name_is_no_reference(tmp_path: Path, bitnet: Run) -> None:
    copy = shutil.copy(UNTIED / "PQ2_0.gguf", tmp_path / "hf.gguf")
    assert bitnet("inspect", str(copy)).returncode == 0
