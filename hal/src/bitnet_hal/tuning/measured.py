"""Results of `bitnet tune` in the cache folder: the speed of each device and its fastest tilings.

An entry is valid for one device, one driver and one state of the backend's kernels; its key is a hash of all three.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from bitnet_hal.device import DeviceInfo, Tuning
from bitnet_hal.errors import BitnetError
from bitnet_hal.kernels.params import PRODUCT
from bitnet_hal.output import new_file

KernelsHash = Callable[[str], str]
"""Name of a backend -> hash of its kernels (`discovery.registry.kernels_hash`)."""
LONGEST = 4 << 20
"""Maximum bytes of the file; the tilings of a device take a few kilobytes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one device. token_seconds: seconds of a decode step of `model`. tilings: by `tiling_key`."""

    model: str
    token_seconds: float
    tilings: Mapping[str, Tuning] = field(default_factory=dict)


def tiling_key(kernel: str, constants: Mapping[str, int], params: Mapping[str, int | float]) -> str:
    """Return the key of a product: kernel, constants and sizes."""
    sizes = " ".join(f"{name}={params[name]}" for name in sorted(PRODUCT))
    return " ".join([kernel, *(f"{name}={value}" for name, value in sorted(constants.items())), sizes])


def measured(info: DeviceInfo, kernels_hash: KernelsHash) -> Measured | None:
    """Return the measurements of a device, None if there are none for its present driver and kernels."""
    entry = _read().get(info.request)
    if info.fake or not isinstance(entry, dict) or entry.get("key") != device_key(info, kernels_hash):
        return None
    return _entry(entry)


def tilings(info: DeviceInfo, kernels_hash: KernelsHash) -> Mapping[str, Tuning]:
    """Return the fastest tilings of a device by `tiling_key`, {} if it offers no choice."""
    known = measured(info, kernels_hash) if "tunings" in info.features else None
    return known.tilings if known else {}


def token_seconds(devices: Iterable[DeviceInfo], kernels_hash: KernelsHash) -> dict[str, float]:
    """Return seconds per token by request, for devices measured on the same model as the first one."""
    found = {info.request: known for info in devices if (known := measured(info, kernels_hash))}
    model = next((known.model for known in found.values()), "")
    return {request: known.token_seconds for request, known in found.items() if known.model == model}


def keep(results: Iterable[tuple[DeviceInfo, Measured]], kernels_hash: KernelsHash) -> None:
    """Add results to the file. An unwritable folder is ignored."""
    entries = _read()
    for info, result in results:
        earlier = measured(info, kernels_hash)
        tilings = {**(earlier.tilings if earlier else {}), **result.tilings}
        entries[info.request] = {
            "key": device_key(info, kernels_hash),
            "device": info.name,
            "model": result.model,
            "token_seconds": result.token_seconds,
            "tilings": {name: asdict(tuning) for name, tuning in tilings.items()},
        }
    with suppress(OSError, BitnetError):
        path().parent.mkdir(parents=True, exist_ok=True)
        with new_file(path(), force=True) as file:
            file.write(json.dumps(entries, indent=1).encode())


def device_key(info: DeviceInfo, kernels_hash: KernelsHash) -> str:
    """Return the hash of a device, its driver and the backend's kernels."""
    parts = (info.request, info.name, info.driver, info.physical_id, kernels_hash(info.backend))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def path() -> Path:
    """Return the path of the file."""
    return platformdirs.user_cache_path("bitnet", appauthor=False) / "tuned.json"


def _read() -> dict[str, Any]:
    try:
        with path().open("rb") as file:
            found = json.loads(file.read(LONGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _entry(entry: Mapping[str, Any]) -> Measured | None:
    """Parse an entry of the file; None if it is invalid."""
    try:
        seconds = float(entry["token_seconds"])
        tilings = {str(name): _tuning(found) for name, found in entry["tilings"].items()}
        return Measured(str(entry["model"]), seconds, tilings) if seconds > 0 else None
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return None


def _tuning(found: Mapping[str, Any]) -> Tuning:
    tile = {str(name): int(value) for name, value in found["tile"].items()}
    private = {str(name): int(value) for name, value in found["private"].items()}
    return Tuning(tile, str(found["variant"]), private, int(found["workspace"]))
