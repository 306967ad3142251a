"""The exported model in a real browser: Chromium's WebGPU on SwiftShader generates the same tokens as numpy."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.api import load
from bitnet_hal.errors import UsageError
from bitnet_webgpu.export import export

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "examples" / "web-stories"
TOLD = (("Once upon a time there was a", 20), ("Tom and  Sue didn't want 12 apples.\n\nThe é", 4))
SECONDS = 150
_TEST = """<!doctype html><script type="module">
const found = {};
try {
  const { Stories } = await import('./stories.js');
  const stories = await Stories.load(new URL('model/', location.href));
  stories.device.onuncapturederror = (event) => { found.error ??= event.error.message; };
  found.adapter = stories.adapter;
  found.told = [];
  for (const [prompt, count] of TOLD) found.told.push(await stories.tell(prompt, count));
} catch (error) { found.error = String(error) + error.stack; }
await fetch('/result', { method: 'POST', body: JSON.stringify(found) });
</script>"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, results: list[dict[str, Any]], done: threading.Event, **kwargs: Any) -> None:
        self.results, self.done = results, done
        super().__init__(*args, **kwargs)

    def do_POST(self) -> None:
        self.results.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()
        self.done.set()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def chromium(url: str, profile: Path) -> Iterator[None]:
    """The browser, headless, with a WebGPU that needs no GPU."""
    flags = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions")
    gpu = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
    command = ["chromium", *flags, *gpu, f"--user-data-dir={profile}", url]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            browser.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    shutil.copytree(PAGE, folder, dirs_exist_ok=True)
    command = [
        sys.executable,
        "-c",
        "from bitnet_core.cli.app import main; main()",
        "export-web",
        str(folder / "model"),
    ]
    subprocess.run(command, check=True, timeout=120)
    return folder


def test_the_browser_says_what_numpy_says(exported: Path, tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        assert os.environ.get("CI") != "true", "CI installs chromium"
        pytest.skip("it needs chromium (apt install chromium)")
    page = _TEST.replace("TOLD", json.dumps(TOLD))
    (exported / "test.html").write_text(page, "utf-8")
    results: list[dict[str, Any]] = []
    done = threading.Event()
    handler = partial(_Handler, directory=str(exported), results=results, done=done)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with chromium(f"http://127.0.0.1:{server.server_port}/test.html", tmp_path / "profile"):
                assert done.wait(SECONDS), f"the page gave no result in {SECONDS} s"
        finally:
            server.shutdown()
    (found,) = results
    assert "error" not in found, found["error"]
    with load(device="numpy") as model:
        for (prompt, count), told in zip(TOLD, found["told"], strict=True):
            said = model.generate(prompt, max_tokens=count)
            assert told["tokens"] == list(said.tokens), (told["text"], said.text)
            assert told["text"] == said.text


def test_nothing_is_overwritten(exported: Path) -> None:
    before = (exported / "model" / "model.json").read_bytes()
    with pytest.raises(UsageError, match="not an empty folder"):
        export(exported / "model")
    assert (exported / "model" / "model.json").read_bytes() == before


def test_a_browser_with_default_limits_can_bind_it(exported: Path) -> None:
    document = json.loads((exported / "model" / "model.json").read_text())
    assert document["launches"]
    for launch in document["launches"]:
        assert len(launch["views"]) <= 8
        assert all(offset % 256 == 0 for _, offset, _ in launch["views"])
        assert max(launch["grid"]) <= 65535
