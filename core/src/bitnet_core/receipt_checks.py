"""Checks of a receipt: its schema, its hash, and that its parts agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bitnet_hal.environment import strict_mode
from bitnet_hal.errors import StrictModeError

from bitnet_core.errors import ReceiptError
from bitnet_core.receipt import SCHEMA_VERSION, Json, content_sha256, render

OLDEST_READ = 2
"""The oldest schema version that is read; see `_schema`."""
MAX_BYTES = 1 << 20
"""Limit of a receipt's size, which is a few kilobytes."""


def verify_receipt(path: Path) -> Json:
    """Read a receipt and check its schema, its hash and that its parts agree.

    Raises ReceiptError with the fault; StrictModeError for the receipt of a fake or fallback device under
    BITNET_STRICT_MODE.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ReceiptError(f"the receipt {path} cannot be read: {exc.strerror}") from exc
    if len(raw) > MAX_BYTES:
        raise ReceiptError(f"{path} does not verify: it is larger than {MAX_BYTES} bytes")
    try:
        receipt = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise ReceiptError(f"{path} does not verify: it is not JSON ({exc})") from exc
    if problem := _problem(receipt, raw):
        raise ReceiptError(f"{path} does not verify: {problem}")
    checked: Json = receipt
    if checked["compute_path"] != "real" and strict_mode():
        kind = "fake device" if checked["compute_path"] == "mock" else "device that was a fallback"
        raise StrictModeError(f"{path} is the receipt of a {kind}, which BITNET_STRICT_MODE rejects")
    return checked


def _problem(receipt: Any, raw: bytes) -> str:
    """Return the fault of a receipt that was read from `raw`, "" if there is none."""
    if not isinstance(receipt, dict):
        return "it is not a JSON object"
    version = receipt.get("schema_version")
    if version not in range(OLDEST_READ, SCHEMA_VERSION + 1):
        return f"schema version {version} is not supported; this version reads {OLDEST_READ} to {SCHEMA_VERSION}"
    return (
        _schema_problem(receipt, _schema(receipt["schema_version"]), "")
        or _hash_problem(receipt, raw)
        or _contradiction(receipt)
    )


_NUMBER = (int, float)
_SCHEMA: Json = {
    "schema_version": int,
    "time": str,
    "software": {"bitnet-core": str, "python": str, "system": str},
    "model": {"name": str, "sha256": str, "format": str},
    "device": {"backend": str, "index": int, "name": str, "vendor": str, "driver": str, "type": str, "fake": bool},
    "startup": {"requested": str, "detected": list, "selected": str, "fallback": bool, "line": str, "skipped": list},
    "compute_path": str,
    "layers": dict,
    "kernels": dict,
    "moved_bytes_per_token": _NUMBER,
    "tokens": {"prompt": int, "generated": int},
    "seconds": {"prefill": _NUMBER, "decode": _NUMBER},
    "engine": {"kv_cache_type": str, "activation_group_size": int, "context": int, "prefill_chunk": int},
    "sampling": dict,
    "speculation": {"kind": str, "draft_tokens": int, "accepted_tokens": int},
    "output": {"tokens_sha256": str, "finish_reason": str},
    "environment": dict,
    "content_sha256": str,
}


def _schema(version: int) -> Json:
    """Return the fields of a schema version."""
    schema = dict(_SCHEMA)
    if version < 6:
        schema["engine"] = {
            "kv_dtype" if name == "kv_cache_type" else name: kind for name, kind in schema["engine"].items()
        }
    if version < 3:
        del schema["engine"]
    if version < 5:
        del schema["speculation"], schema["layers"]
    if version < 4:
        schema["startup"] = {name: kind for name, kind in schema["startup"].items() if name != "fallback"}
    return schema


def _schema_problem(value: Json, schema: Json, where: str) -> str:
    for missing in schema.keys() - value.keys():
        return f"the field {where}{missing} is missing"
    for unknown in value.keys() - schema.keys():
        return f"the field {where}{unknown} is unknown"
    for name, kind in schema.items():
        if isinstance(kind, dict):
            if not isinstance(value[name], dict):
                return f"the field {where}{name} is not an object"
            if problem := _schema_problem(value[name], kind, f"{where}{name}."):
                return problem
        elif not isinstance(value[name], kind) or (isinstance(value[name], bool) and kind is not bool):
            return f"the field {where}{name} has the wrong type"
    return ""


def _hash_problem(receipt: Json, raw: bytes) -> str:
    if receipt["content_sha256"] != content_sha256(receipt):
        return "the content does not match its hash; it was changed"
    if raw != render(receipt):
        return "the file is not laid out as it was written; it was changed"
    return ""


def _contradiction(receipt: Json) -> str:
    """Return a contradiction between fields, "" if there is none."""
    device, startup, path = receipt["device"], receipt["startup"], receipt["compute_path"]
    expected = "mock" if device["fake"] else "fallback" if startup["skipped"] else "real"
    if not all(isinstance(launches, dict) for launches in receipt["kernels"].values()):
        return "the launches of a device are not an object"
    tried = {str(one.get("device")) for one in startup["skipped"] if isinstance(one, dict)}
    launched = [count for launches in receipt["kernels"].values() for count in launches.values()]
    drafted = {"draft_tokens": 0, "accepted_tokens": 0} | receipt.get("speculation", {})
    counts = [*receipt["tokens"].values(), *launched, drafted["draft_tokens"], drafted["accepted_tokens"]]
    digests = [receipt["model"]["sha256"], receipt["output"]["tokens_sha256"]]
    if path != expected:
        return f"compute_path is '{path}', but its device and startup imply '{expected}'"
    if startup["skipped"] and not startup.get("fallback", True):
        return "startup.fallback is false, but a device was skipped"
    if startup["selected"] != f"{device['backend']}:{device['index']}":
        return "startup.selected is not the device"
    selected = device["backend"] if device["index"] == 0 else startup["selected"]
    detected = ",".join(map(str, startup["detected"]))
    if startup["line"] != f"requested={startup['requested']} detected=[{detected}] selected={selected}":
        return "startup.line does not match the other fields of startup"
    if not receipt["kernels"].keys() <= {startup["selected"], *tried, *receipt.get("layers", ())}:
        return "kernels ran on a device that was neither selected nor skipped, and has no layers"
    if any(type(count) is not int or count < 0 for count in counts):
        return "a count is not a natural number"
    if drafted["accepted_tokens"] > drafted["draft_tokens"]:
        return "more draft tokens were accepted than there were"
    if any(seconds < 0 for seconds in receipt["seconds"].values()):
        return "a time is negative"
    if receipt["tokens"]["generated"] and not sum(launched):
        return "tokens were generated without a single kernel launch"
    if any(len(digest) != 64 or set(digest) - set("0123456789abcdef") for digest in digests):
        return "a hash is not a SHA-256 in hexadecimal"
    return _layers_problem(receipt)


def _layers_problem(receipt: Json) -> str:
    """Return a contradiction between the layers and other fields, "" if there is none."""
    layers = receipt.get("layers")
    if layers is None:
        return ""
    if any(type(count) is not int or count < 1 for count in layers.values()):
        return "a device has a number of layers that is not 1 or more"
    if receipt["startup"]["selected"] not in layers:
        return "the selected device has no layers"
    if receipt["tokens"]["generated"] and not all(sum(receipt["kernels"].get(name, {}).values()) for name in layers):
        return "tokens were generated without a kernel launch on a device with layers"
    return ""


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")
