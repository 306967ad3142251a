"""Cache of the answers of drivers, so that child processes are needed only now and then.

A driver that answered is not asked again for a day, one that did not for ten minutes. Another version of the plugin,
another setting of the driver or a restart of the machine invalidates an entry.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from bitnet_hal.discovery.known import KNOWN
from bitnet_hal.errors import BitnetError
from bitnet_hal.output import new_file
from bitnet_hal.version import __version__

ANSWERED_SECONDS = 86_400
SILENT_SECONDS = 600
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def remembered(backends: Mapping[str, str]) -> dict[str, str]:
    """Return the reason per driver with a valid cache entry, "" for one that answered.

    backends: name (a key of KNOWN) -> version of the plugin.
    """
    cache = read()
    now = time.time()
    keys = {name: key(name, version) for name, version in backends.items()}
    return {name: cache[entry]["reason"] for name, entry in keys.items() if _is_valid(cache.get(entry), now)}


def remember(reasons: Mapping[str, str], backends: Mapping[str, str]) -> None:
    """Store the reason per driver ("" if it answered). backends: as in `remembered`."""
    now = time.time()
    valid = {entry: value for entry, value in read().items() if _is_valid(value, now)}
    new = {key(name, backends[name]): {"time": now, "reason": reason} for name, reason in reasons.items()}
    write(valid | new)


def key(name: str, version: str) -> str:
    """Return the cache key of a driver: plugin, interpreter, boot of the machine, and the driver's variables."""
    settings = [os.environ.get(variable) for variable in KNOWN[name].variables]
    return json.dumps([name, version, __version__, sys.executable, _boot(), settings])


def path() -> Path:
    """Return the path of the cache file."""
    return platformdirs.user_cache_path("bitnet") / "drivers.json"


def read() -> dict[str, Any]:
    """Return the content of the cache file, {} if it is missing or damaged."""
    try:
        found = json.loads(path().read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write(cache: dict[str, Any]) -> None:
    """Replace the cache file; if it cannot be written, drivers are asked each time."""
    with suppress(OSError, BitnetError):
        path().parent.mkdir(parents=True, exist_ok=True)
        with new_file(path(), force=True) as file:
            file.write(json.dumps(cache).encode())


def _boot() -> str:
    """Return an id that changes when the machine restarts.

    Without a boot id it is the start time rounded to 1,000 s. If the clock is set, drivers are asked once more.
    """
    with suppress(OSError):
        return BOOT_ID.read_text("ascii").strip()
    return str(round(time.time() - time.monotonic(), -3))


def _is_valid(entry: Any, now: float) -> bool:
    """Return whether an entry of the cache is well-formed and recent enough."""
    if not isinstance(entry, dict) or not isinstance(entry.get("reason"), str):
        return False
    asked = entry.get("time")
    limit = SILENT_SECONDS if entry["reason"] else ANSWERED_SECONDS
    return isinstance(asked, int | float) and now - limit < asked <= now  # compared only: it may be of any size
