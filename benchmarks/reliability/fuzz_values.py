"""Cases that mutate values, not bytes: states, caches, schemas, messages and a hub's answers keep their form.

Flipped bits rarely pass a container's checks; a value of another type or an odd text does, and reaches the code behind.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import bitnet_core
from bitnet_core.engine.cache_file import MAGIC
from bitnet_core.hub import fetch
from bitnet_core.hub.model_files import choose
from bitnet_core.hub.reference import Reference
from bitnet_core.structured import grammar_of
from bitnet_hal.discovery import driver_cache
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.tuning import measured

Case = Callable[[random.Random, Path], Path]
Target = tuple[Case, Callable[[Path], object], int]

TEXTS = (
    "", "\0", "\ud800", "\udfff\ud800", "\U000f0000", "\U0010fffd", "\ufeff", "\u202e", "a" * 3000, "<|eot_id|>", "..",
    "/etc/passwd", "%s{}", "\x1b[2J\x07", "e\u0301" * 50, "-1", "nan",
)  # fmt: skip
VALUES = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 1.5, 1e308, float("inf"), float("nan"), [], [[]], [1],
    ["a"], [None], {}, {"a": 1}, {"type": "object"}, *TEXTS,
)  # fmt: skip
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^[a-z]+$"},
        "b": {"type": "array", "items": {"enum": [1, "x"]}, "minItems": 1, "maxItems": 3},
        "c": {"anyOf": [{"$ref": "#/$defs/d"}, {"type": "null"}]},
        "e": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"d": {"type": "object", "properties": {"d": {"$ref": "#/$defs/d"}}}},
}
INFO: dict[str, Any] = {
    "id": "o/m",
    "sha": "0123456789abcdef0123456789abcdef01234567",
    "siblings": [
        {"rfilename": name, "size": 4096, "lfs": {"sha256": "ab" * 32, "size": 4096, "pointerSize": 134}}
        for name in ("m-i2_s.gguf", "m-q2_0.gguf", "config.json", "model.safetensors", "model-1-of-2.gguf")
    ],
}


def changed(draw: random.Random, document: Any) -> Any:
    """Return a copy with one to three values, or names of values, replaced."""
    document = {"": copy.deepcopy(document)}
    for _ in range(draw.choice((1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []
        _collect(document, places)
        holder, at = draw.choice(places)
        kind = draw.randrange(4)
        if kind == 0 and isinstance(holder, dict) and at:
            holder[draw.choice(TEXTS)] = holder.pop(at)
        elif kind == 1 and isinstance(holder, dict) and at:
            del holder[at]
        elif kind == 2:
            holder[at] = [copy.deepcopy(holder[at]) for _ in range(draw.choice((1, 2, 100)))]
        else:
            holder[at] = copy.deepcopy(draw.choice(VALUES))
    return document[""]


def _collect(holder: Any, places: list[tuple[Any, Any]]) -> None:
    items = holder.items() if isinstance(holder, dict) else enumerate(holder)
    for at, value in list(items)[:500]:
        places.append((holder, at))
        if isinstance(value, dict | list):
            _collect(value, places)


def of_json(document: Any, name: str) -> Case:
    def case(draw: random.Random, folder: Path) -> Path:
        (folder / name).write_text(json.dumps(changed(draw, document)))
        return folder / name

    return case


@cache
def _model() -> bitnet_core.Model:
    return bitnet_core.load(device="numpy", context=256, max_sequences=1)


def of_state(draw: random.Random, folder: Path) -> Path:
    """A saved state whose header has other values, and whose checksum is right again."""
    path = folder / "state"
    model = _model()
    if not model.engine.cached_blocks():
        model.generate("Once upon a time " * 20, max_tokens=1)
    model.save_state(path)
    content = path.read_bytes()
    length = struct.unpack_from("<I", content, len(MAGIC))[0]
    begin = len(MAGIC) + 4
    header = json.dumps(changed(draw, json.loads(content[begin : begin + length]))).encode()
    body = MAGIC + struct.pack("<I", len(header)) + header + content[begin + length : -32]
    path.write_bytes(body + hashlib.sha256(body).digest())
    return path


def of_messages(draw: random.Random, folder: Path) -> Path:
    """Messages of odd characters: a plane of private use, surrogates, written control tokens."""
    kinds = (
        "".join(map(chr, range(0xF0000, 0xFFFFE))),
        "".join(map(chr, range(0xE000, 0xF900))),
        draw.choice(TEXTS) * draw.choice((1, 7)),
    )
    text = draw.choice(kinds) + draw.choice(("", "<|eot_id|>", "<|eot_id|", "\ud800"))
    path = folder / "messages.json"
    path.write_text(
        json.dumps(
            changed(draw, [{"role": "user", "content": text}])
            if draw.random() < 0.3
            else [{"role": "user", "content": text}]
        )
    )
    return path


def chat(path: Path) -> None:
    _model().chat(json.loads(path.read_text()), max_tokens=1)


def compile_schema(path: Path) -> None:
    schema = json.loads(path.read_text())
    model = _model()
    grammar = grammar_of({"type": "json_schema", "json_schema": {"schema": schema}})
    if grammar is not None:
        model.grammars.constraint(grammar)


def read_info(path: Path) -> None:
    """Read a hub's description as `pull` does, without a connection."""
    hub, reference = fetch.library(), Reference("o/m")
    with fetch._explained(reference, hub):
        files = fetch._files(hub.hf_api.ModelInfo(**json.loads(path.read_text())))
        choose("o/m", {name: file.size or 0 for name, file in files.items()})


def read_driver_cache(path: Path) -> None:
    with mock.patch.object(driver_cache, "path", return_value=path):
        driver_cache.remembered({"cuda": "1", "vulkan": "1"})


def read_measured(path: Path) -> None:
    info = numpy_info()
    with mock.patch.object(measured, "path", return_value=path):
        measured.token_seconds([info], lambda _: "hash")
        measured.tilings(info, lambda _: "hash")


def _driver_answers() -> Any:
    return {driver_cache.key(name, "1"): {"reason": "", "time": 2e9} for name in ("cuda", "vulkan")}


def _measurements() -> Any:
    info = numpy_info()
    tiling = {"kernel argmax": {"tile": {"ROWS": 4}, "private": {}, "threads": 64}}
    key = measured.device_key(info, lambda _: "hash")
    return {info.request: {"key": key, "device": "x", "model": "m", "token_seconds": 0.5, "tilings": tiling}}


def value_targets() -> dict[str, Target]:
    """Return by name: the maker of cases, the reader, and the cases per round."""
    return {
        "state": (of_state, lambda path: _model().load_state(path), 4),
        "messages": (of_messages, chat, 2),
        "schema": (of_json(SCHEMA, "schema.json"), compile_schema, 8),
        "hub": (of_json(INFO, "info.json"), read_info, 8),
        "drivers.json": (of_json(_driver_answers(), "drivers.json"), read_driver_cache, 8),
        "measurements": (of_json(_measurements(), "measured.json"), read_measured, 8),
    }
