"""Drivers are asked for their devices in processes of their own first: one that hangs or crashes hides nobody.

A driver that answered is not asked again this way for a day, one that did not for ten minutes; another version of the
plugin, another setting of the driver or a restart of the machine makes it be asked anew.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import importlib_metadata
import platformdirs

from bitnet_hal.discovery.known import KNOWN
from bitnet_hal.errors import BitnetError
from bitnet_hal.hooks import ENTRY_POINT_GROUP
from bitnet_hal.isolation import LEFT_OUT_AFTER, NAMED_AFTER
from bitnet_hal.output import new_file
from bitnet_hal.version import __version__

ANSWERED_SECONDS = 86_400
SILENT_SECONDS = 600
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


def unresponsive_drivers(backends: Mapping[str, str]) -> dict[str, str]:
    """Why the drivers of some backends cannot be asked, by name; those that can are left out. backends: name (of KNOWN)
    -> version of the plugin."""
    found = remembered(backends)
    if unknown := [name for name in backends if name not in found]:
        fresh = _ask(unknown)
        remember(fresh, backends)
        found |= fresh
    return {name: found[name] for name in backends if found[name]}


def remembered(backends: Mapping[str, str]) -> dict[str, str]:
    """Of the drivers that were asked lately: why they cannot be asked, "" if they can. backends: as above."""
    cache, now = _read(), time.time()
    keys = {name: _key(name, version) for name, version in backends.items()}
    return {name: cache[key]["reason"] for name, key in keys.items() if _holds(cache.get(key), now)}


def remember(reasons: Mapping[str, str], backends: Mapping[str, str]) -> None:
    """Keep what drivers have just answered, as `remembered` gives it."""
    now = time.time()
    cache = {key: entry for key, entry in _read().items() if _holds(entry, now)}
    _write(cache | {_key(name, backends[name]): {"time": now, "reason": reason} for name, reason in reasons.items()})


def ended(code: int) -> str:
    """Why a driver cannot be asked whose process ended like this; codes below 0 are signals."""
    with suppress(ValueError):
        return f"its driver ends the process that asks for its devices ({signal.Signals(-code).name})"
    return f"its driver ends the process that asks for its devices (code {code:#x})"


def _ask(names: list[str]) -> dict[str, str]:
    """All at once, so that only the slowest one is waited for."""
    try:
        processes = {name: _started(name) for name in names}
    except (OSError, ValueError) as exc:  # a frozen program has no interpreter to start
        log.debug("drivers are asked in this process: %s", exc)
        return dict.fromkeys(names, "")
    began = time.monotonic()
    try:
        for name, process in processes.items():
            if not _ends(process, began + NAMED_AFTER):
                log.warning("the driver of %s does not answer after %g s", name, NAMED_AFTER)
        return {name: _reason(process, began + LEFT_OUT_AFTER) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def _started(name: str) -> subprocess.Popen[bytes]:
    program = "import sys; sys.path[:0] = sys.argv[2:]; from bitnet_hal.discovery.canary import ask; ask(sys.argv[1])"
    folders = [folder for folder in sys.path if os.path.isabs(folder)]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-c", program, name, *folders], stdin=subprocess.PIPE, stdout=nothing, stderr=nothing
    )


def ask(name: str) -> None:
    """In the process of its own: list the devices of a backend and end. What it raises is for the parent to find."""
    with suppress(BaseException):
        Thread(target=_end_with_parent, daemon=True).start()
        entry = next(entry for entry in importlib_metadata.entry_points(group=ENTRY_POINT_GROUP) if entry.name == name)
        list(entry.load().bitnet_backend().devices())
    os._exit(0)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # nothing is ever written there: it ends when the parent does, however that happens
    os._exit(0)


def _ends(process: subprocess.Popen[bytes], end: float) -> bool:
    try:
        process.wait(max(0.01, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _reason(process: subprocess.Popen[bytes], end: float) -> str:
    if not _ends(process, end):
        return f"its driver does not answer within {LEFT_OUT_AFTER:g} s"
    code = process.returncode
    return "" if 0 <= code < 256 else ended(code)


def _key(name: str, version: str) -> str:
    settings = [os.environ.get(variable) for variable in KNOWN[name].variables]
    return json.dumps([name, version, __version__, sys.executable, _boot(), settings])


def _boot() -> str:
    """Return what changes when the machine starts again. Without a boot id: when that was, to 1,000 s, as one clock
    minus another. Where that number changes by itself, drivers are asked once more."""
    with suppress(OSError):
        return BOOT_ID.read_text("ascii").strip()
    return str(round(time.time() - time.monotonic(), -3))


def _path() -> Path:
    return platformdirs.user_cache_path("bitnet") / "drivers.json"


def _read() -> dict[str, Any]:
    try:
        found = json.loads(_path().read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(cache: dict[str, Any]) -> None:
    with suppress(OSError, BitnetError):  # without a place to write, drivers are asked each time
        _path().parent.mkdir(parents=True, exist_ok=True)
        with new_file(_path(), force=True) as file:
            file.write(json.dumps(cache).encode())


def _holds(entry: Any, now: float) -> bool:
    """Whether an entry of the cache is sound and young enough."""
    if not isinstance(entry, dict) or not isinstance(entry.get("reason"), str):
        return False
    asked, limit = entry.get("time"), SILENT_SECONDS if entry["reason"] else ANSWERED_SECONDS
    return isinstance(asked, int | float) and now - limit < asked <= now  # compared only: it may be of any size
