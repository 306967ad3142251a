"""What `bitnet tune` found on this machine, kept in the cache folder: how fast each device is, which tilings won.

An entry holds for one device, one driver and one state of the backend's kernels: its key is a hash of all three.
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
from bitnet_hal.output import new_file

PRODUCT = frozenset({"rows", "outs", "width"})
"""Parameters of a product that its tiling may depend on."""
KernelsHash = Callable[[str], str]
"""Name of a backend -> hash of its kernels (`discovery.registry.kernels_hash`)."""
LONGEST = 4 << 20
"""Bytes of the file; a device's tilings take a few kilobytes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one device. token_seconds: of a decode step of the model that was measured. tilings: by `tiling_key`."""

    model: str
    token_seconds: float
    tilings: Mapping[str, Tuning] = field(default_factory=dict)


def tiling_key(kernel: str, constants: Mapping[str, int], params: Mapping[str, int | float]) -> str:
    """Names a product: what its tiling may depend on."""
    sizes = " ".join(f"{name}={params[name]}" for name in sorted(PRODUCT))
    return " ".join([kernel, *(f"{name}={value}" for name, value in sorted(constants.items())), sizes])


def measured(info: DeviceInfo, kernels_hash: KernelsHash) -> Measured | None:
    """What is known of a device; None where it was not measured, or its driver or kernels are others by now."""
    entry = _read().get(info.request)
    if info.fake or not isinstance(entry, dict) or entry.get("key") != device_key(info, kernels_hash):
        return None
    return _entry(entry)


def tilings(info: DeviceInfo, kernels_hash: KernelsHash) -> Mapping[str, Tuning]:
    """Return the tilings that won on a device, by `tiling_key`; none if it offers no choice."""
    known = measured(info, kernels_hash) if "tunings" in info.features else None
    return known.tilings if known else {}


def token_seconds(devices: Iterable[DeviceInfo], kernels_hash: KernelsHash) -> dict[str, float]:
    """Seconds a token of those devices that were measured on the same model as the first one, by request."""
    found = {info.request: known for info in devices if (known := measured(info, kernels_hash))}
    model = next((known.model for known in found.values()), "")
    return {request: known.token_seconds for request, known in found.items() if known.model == model}


def keep(results: Iterable[tuple[DeviceInfo, Measured]], kernels_hash: KernelsHash) -> None:
    """Keep these results beside those of other devices; nothing is kept where nothing can be written."""
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
    """Hash of the device, its driver and the backend's kernels."""
    parts = (info.request, info.name, info.driver, info.physical_id, kernels_hash(info.backend))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def path() -> Path:
    """The file."""
    return platformdirs.user_cache_path("bitnet", appauthor=False) / "tuned.json"


def _read() -> dict[str, Any]:
    try:
        with path().open("rb") as file:
            found = json.loads(file.read(LONGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _entry(entry: Mapping[str, Any]) -> Measured | None:
    """None for an entry that nobody wrote this way."""
    try:
        seconds = float(entry["token_seconds"])
        tilings = {str(name): _tuning(found) for name, found in entry["tilings"].items()}
        return Measured(str(entry["model"]), seconds, tilings) if seconds > 0 else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _tuning(found: Mapping[str, Any]) -> Tuning:
    tile, private = ({str(k): int(v) for k, v in found[name].items()} for name in ("tile", "private"))
    return Tuning(tile, str(found["variant"]), private, int(found["workspace"]))
