"""Receipts: a JSON record of a generation and the software and hardware that computed it (checks: receipt_checks.py).

The hash at the end guards against accidents and careless edits. It is not a signature: anybody can compute it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet_hal.device import DeviceInfo
from bitnet_hal.discovery.known import KNOWN
from bitnet_hal.discovery.selection import BackendStartupSummary
from bitnet_hal.output import new_file

from bitnet_core.errors import ReceiptError
from bitnet_core.version import core_version

if TYPE_CHECKING:
    from bitnet_core.engine.engine import Engine

SCHEMA_VERSION = 6
_SECRET = frozenset({"BITNET_API_KEY"})

Json = dict[str, Any]


def make_receipt(
    *,
    model: Mapping[str, str],
    summary: BackendStartupSummary,
    layers: Mapping[str, int],
    kernels: Mapping[str, Mapping[str, int]],
    moved_bytes_per_token: float,
    prompt_tokens: int,
    tokens: Sequence[int],
    finish_reason: str,
    prefill_seconds: float,
    decode_seconds: float,
    engine: Mapping[str, Any],
    sampling: Mapping[str, Any],
    speculation: Mapping[str, Any],
) -> Json:
    """Build the receipt of one generation.

    model: name, sha256 and format. layers: number of the model's layers by device, in their order. kernels: launches of
    this process by device and catalogue name, as counted at their dispatch. moved_bytes_per_token: copied between host
    and devices. engine and sampling: all options in force that change the tokens (see `engine_options`). speculation:
    kind, and numbers of draft tokens. Times are seconds.
    """
    receipt: Json = {
        "schema_version": SCHEMA_VERSION,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "software": {
            "bitnet-core": core_version(),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "model": dict(model),
        "device": _device(summary.selected),
        "startup": _startup(summary),
        "compute_path": summary.compute_path,
        "layers": dict(layers),
        "kernels": {device: dict(sorted(counts.items())) for device, counts in sorted(kernels.items())},
        "moved_bytes_per_token": round(moved_bytes_per_token, 1),
        "tokens": {"prompt": prompt_tokens, "generated": len(tokens)},
        "seconds": {"prefill": round(prefill_seconds, 6), "decode": round(decode_seconds, 6)},
        "engine": dict(engine),
        "sampling": dict(sampling),
        "speculation": dict(speculation),
        "output": {"tokens_sha256": tokens_sha256(tokens), "finish_reason": finish_reason},
        "environment": _overrides(),
    }
    receipt["content_sha256"] = content_sha256(receipt)
    return receipt


def engine_options(engine: Engine) -> Json:
    """Return the options of an engine that change tokens. The others (kv_cache_size, eviction, lm_head_int8,
    speculate, ...) change only the speed."""
    return {
        "kv_cache_type": engine.options.kv_cache_type,
        "activation_group_size": engine.config.activation_group_size,
        "context": engine.context,
        "prefill_chunk": engine.scheduler.chunk,
    }


def _device(info: DeviceInfo) -> Json:
    return {
        "backend": info.backend,
        "index": info.index,
        "name": info.name,
        "vendor": info.vendor,
        "driver": info.driver,
        "type": info.type.value,
        "fake": info.fake,
    }


def _startup(summary: BackendStartupSummary) -> Json:
    return {
        "requested": str(summary.requested),
        "detected": list(summary.detected),
        "selected": summary.selected.request,
        "fallback": summary.fallback,
        "line": str(summary),
        "skipped": [{"device": skipped.request, "reason": reason} for skipped, reason in summary.skipped],
    }


def tokens_sha256(tokens: Sequence[int]) -> str:
    """Return the hex digest of token ids as little-endian 32-bit integers."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest()


def _overrides() -> dict[str, str]:
    """Return every environment variable in force that can change a result or its speed, by name; no secret."""
    drivers = {name for backend in KNOWN.values() for name in backend.variables}
    names = [name for name in sorted(os.environ) if name.startswith("BITNET_") or name in drivers]
    return {name: os.environ[name] for name in names if name not in _SECRET}


def write_receipt(receipt: Json, path: Path, inputs: Iterable[Path] = (), *, force: bool = False) -> None:
    """Write the receipt completely or not at all, by the rules of `output`. Raises ReceiptError if that is
    impossible."""
    with new_file(path, inputs, force=force, error=ReceiptError) as file:
        file.write(render(receipt))


def content_sha256(receipt: Json) -> str:
    """Return the hex digest of all fields of a receipt but its own hash."""
    content = {name: value for name, value in receipt.items() if name != "content_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def render(receipt: Json) -> bytes:
    """Return the content of the receipt's file."""
    return (json.dumps(receipt, indent=2) + "\n").encode()
