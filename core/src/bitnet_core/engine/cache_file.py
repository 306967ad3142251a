"""The prompt cache on disk: full blocks of keys and values with the block hashes of their tokens.

Layout: MAGIC, u32 length of the header, the header (JSON), for each block its hash (32 bytes) and then keys and values
of every layer, and at the end the SHA-256 of everything before it. All of it is validated against the engine before a
byte is used, because the file is untrusted. The checksum detects damage; a forged file can change cached numbers only.
"""

from __future__ import annotations

import hashlib
import json
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bitnet_hal.device import View
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.output import new_file

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.kv_cache.cache import block_bytes
from bitnet_core.errors import ModelError

MAGIC = b"BITNETKV1\n"
_DIGEST = hashlib.sha256().digest_size
_LONGEST_HEADER = 4096


def save_state(engine: Engine, path: Path, *, force: bool = False) -> int:
    """Write all full blocks of the cache and return their number. Raises UsageError if the file cannot be written or
    the model has delta nets."""
    _check_kind(engine)
    with engine.lock:
        blocks = engine.cached_blocks()
        header = json.dumps(_identity(engine) | {"blocks": len(blocks)}).encode()
        with new_file(path, [engine.source.path], force=force) as file:
            written = hashlib.sha256()
            for part in _parts(engine, blocks, MAGIC + struct.pack("<I", len(header)) + header):
                file.write(part)
                written.update(part)
            file.write(written.digest())
    return len(blocks)


def load_state(engine: Engine, path: Path) -> int:
    """Load blocks of a file into free blocks of the cache and return their number; nothing is evicted. Raises
    ModelError, without using the file, if it is damaged or belongs to another model or cache layout, and UsageError if
    the model has delta nets."""
    _check_kind(engine)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe may never deliver, and everybody would wait for the lock
            raise ModelError(f"{path}: cannot be read: it is not a file")
        with path.open("rb") as file, engine.lock:
            count = _checked(engine, path, file)
            file.seek(-_DIGEST - count * (_DIGEST + _size(engine)), 2)
            return _take(engine, file, count)
    except OSError as exc:
        raise ModelError(f"{path}: cannot be read: {exc.strerror or exc}") from exc


def _check_kind(engine: Engine) -> None:
    if engine.config.delta:
        raise UsageError(
            "the prompt cache of a model with delta nets cannot be saved or loaded: keys and values cannot be "
            "reused without the states of the delta nets at the same position, and those are not saved"
        )


def _parts(engine: Engine, blocks: list[tuple[bytes, int]], head: bytes) -> Iterator[bytes]:
    yield head
    for digest, block in blocks:
        yield digest
        for view in _views(engine, block):
            data = bytearray(view.nbytes)
            engine.device.download(view, memoryview(data))
            yield bytes(data)


def _views(engine: Engine, block: int) -> Iterator[View]:
    """Yield the views of one block: keys of every layer, then values."""
    size = block_bytes(engine.config, engine.options.kv_dtype)
    cache = engine.cache()
    for buffer in (*cache.keys, *cache.values):
        yield buffer.part(block * size, size)


def _size(engine: Engine) -> int:
    return 2 * engine.config.attention_layers * block_bytes(engine.config, engine.options.kv_dtype)


def _identity(engine: Engine) -> dict[str, Any]:
    """Return the header fields that must match: the model's hash and the layout of its cache."""
    made = {"kv": engine.options.kv_dtype, "activation_group_size": engine.config.activation_group_size}
    return {"model": engine.source.sha256(), **made, "tokens": KV_BLOCK, "size": _size(engine)}


def _checked(engine: Engine, path: Path, file: BinaryIO) -> int:
    """Validate a file in constant memory and return its number of blocks. Raises ModelError."""
    start = file.read(len(MAGIC) + 4)
    if len(start) < len(MAGIC) + 4 or not start.startswith(MAGIC):
        raise ModelError(f"{path}: is not a saved state of bitnet")
    length = struct.unpack("<I", start[len(MAGIC) :])[0]
    text = file.read(min(length, _LONGEST_HEADER))
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ModelError(f"{path}: its header is damaged") from exc
    count = header.get("blocks") if isinstance(header, dict) else None
    if length > _LONGEST_HEADER or type(count) is not int or count < 0:
        raise ModelError(f"{path}: its header is damaged")
    for name, value in _identity(engine).items():
        if header.get(name) != value:
            what = "another model" if name == "model" else f"a cache with another {name}"
            raise ModelError(f"{path}: is the state of {what}; load it with the model and options that saved it")
    total = len(start) + length + count * (_DIGEST + _size(engine)) + _DIGEST
    if path.stat().st_size != total:
        raise ModelError(f"{path}: has {path.stat().st_size:,} bytes, not {total:,}: it is truncated or has data added")
    digest = hashlib.sha256(start + text)
    left = total - len(start) - length - _DIGEST
    while left:
        piece = file.read(min(left, 1 << 20))
        if not piece:
            raise ModelError(f"{path}: is truncated")
        digest.update(piece)
        left -= len(piece)
    if file.read(_DIGEST) != digest.digest():
        raise ModelError(f"{path}: is damaged: its checksum does not match")
    return count


def _take(engine: Engine, file: BinaryIO, count: int) -> int:
    taken = 0
    for _ in range(count):
        digest = file.read(_DIGEST)
        block = engine.block_pool.allocate_for(digest)
        if block is None:
            file.seek(_size(engine), 1)
            continue
        for view in _views(engine, block):
            engine.device.upload(view, memoryview(file.read(view.nbytes)))
        engine.block_pool.register(block, digest)
        engine.block_pool.release([block])
        taken += 1
    return taken
