"""Test everything that bitnet writes on a full disk: the right message and exit code, and no partial file.

    python benchmarks/reliability/full_disk.py

The disk is a small tmpfs, which needs Linux and root. Exits with 1 on any violation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "core" / "tests" / "hub"))

STORIES = Path(str(files("bitnet_core"))) / "data" / "stories.gguf"
MAIN = [sys.executable, "-c", "from bitnet_core.cli.app import main; main()"]
FULL = "No space left on device"
ROOM = "import collections, shutil\nshutil.disk_usage = lambda _: collections.namedtuple('usage', 'free')(1 << 40)\n"
"""Program of a process that believes in a large disk: else it would refuse the download before it begins."""


@contextmanager
def full(folder: Path, size: str) -> Iterator[Path]:
    """Yield a disk of that size, filled by a file "filler"."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        status = os.statvfs(folder)
        (folder / "filler").write_bytes(bytes(status.f_bavail * status.f_frsize))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def left(disk: Path) -> list[str]:
    """Return the files on the disk other than the filler."""
    return [str(path.relative_to(disk)) for path in disk.rglob("*") if path.is_file() and path.name != "filler"]


def commands(disk: Path) -> Iterator[tuple[str, str]]:
    """Yield (command, violation) for each command."""
    run = ["run", "x", "-n", "1", "--device", "numpy"]
    bench = ["bench", "--synthetic", "tiny", "--device", "numpy", "-p", "4", "-n", "2", "--repeat", "1"]
    table: dict[str, tuple[list[Any], int]] = {
        "convert to GGUF": (["convert", STORIES, disk / "a.gguf", "--to", "tq2_0"], 3),
        "convert to safetensors": (["convert", STORIES, disk / "a", "--to", "safetensors"], 3),
        "receipt": ([*run, "--receipt", disk / "r.json"], 14),
        "profile": ([*bench, "--profile", disk / "p.json"], 2),
        "new-backend": (["new-backend", "acme", disk / "acme"], 2),
    }
    for name, (arguments, code) in table.items():
        done = subprocess.run([*MAIN, *map(str, arguments)], capture_output=True, text=True)
        good = done.returncode == code and FULL in done.stderr and "Traceback" not in done.stderr and not left(disk)
        yield name, "" if good else f"code {done.returncode}, {done.stderr.strip()[-300:]}, {left(disk)}"


def caches(disk: Path) -> Iterator[tuple[str, str]]:
    """Yield (cache, violation) for each cache; caches must do without the disk silently."""
    os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = str(disk)
    from bitnet_core.logs import log_hint
    from bitnet_hal.discovery import driver_cache
    from bitnet_hal.driver.program_cache import ProgramCache
    from bitnet_hal.errors import KernelCompileError

    cache, key = ProgramCache("full"), ProgramCache.key("x")
    cache.store(key, bytes(1 << 16))
    yield "compiled programs", "" if cache.load(key) is None and not left(disk) else str(left(disk))
    driver_cache.write({"x": {"time": 1, "reason": "y" * 9999}})
    yield "drivers' answers", "" if driver_cache.read() == {} and not left(disk) else str(left(disk))
    hint = log_hint(KernelCompileError("no", kernel="k", log="x" * 99999))
    yield "a compiler's log", "" if "could not be kept" in hint and not left(disk) else f"{hint}, {left(disk)}"


def pull(disk: Path, make_room: Callable[[], None]) -> str:
    """Return the violation of a pull whose disk fills up; once there is room it must resume."""
    os.environ |= {"HF_HOME": str(disk / "hf"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    from test_pull import GGUF, Hub

    hub = Hub()
    hub.handle_error = lambda *_: None  # the client disconnects
    os.environ["HF_ENDPOINT"] = hub.url
    from bitnet_core.errors import ModelError
    from bitnet_core.hub import fetch  # imported late, because it reads the variables
    from bitnet_core.hub.reference import Reference

    hub.files = {GGUF: bytes(24 << 20)}
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    (disk.parent / "sitecustomize.py").write_text(ROOM)  # for the process that fetches
    os.environ["PYTHONPATH"] = str(disk.parent)
    try:
        fetch.pull(Reference.parse("hf:tiny/model"), lambda _: None)
        return "no error"
    except ModelError as error:
        if "the disk is full" not in str(error):
            return str(error)
    finally:
        del os.environ["PYTHONPATH"]
    make_room()
    path = fetch.pull(Reference.parse("hf:tiny/model"), lambda _: None)
    return "" if path.read_bytes() == hub.files[GGUF] else "a different file arrived"


def main() -> None:
    if os.geteuid():
        sys.exit("the full disk is created with mount, which needs root")
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        with full(Path(scratch) / "small", "64k") as disk:
            found |= dict(commands(disk))
            found |= dict(caches(disk))
        with full(Path(scratch) / "large", "40m") as disk:
            found["pull"] = pull(disk, lambda: (disk / "filler").unlink())
    for name, problem in found.items():
        print(f"{name}: {problem or 'as it should be'}")
    sys.exit(any(found.values()))


if __name__ == "__main__":
    main()
