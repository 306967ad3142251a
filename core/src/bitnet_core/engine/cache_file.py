"""The prompt cache on disk: full blocks of keys and values with the digests of the tokens that they stand for.

Layout: MAGIC, u32 length of the header, the header (JSON), for each block its digest (32 bytes) and then keys and
values of every layer, and at the end the SHA-256 of all before. Everything is checked against the engine before a byte
is used: the file may be anything. The hash finds damage; who can forge a file can forge its numbers, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
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
    """Write all full blocks of the cache; how many they are. UsageError where the file cannot be written, and for a
    model with delta nets."""
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
    """Take the blocks of a file into the cache, as many as have room, without giving up what is there; how many they
    are. ModelError for a file of another model or kind of cache, and for a damaged one, of which nothing is used.
    UsageError for a model with delta nets."""
    _check_kind(engine)
    with engine.lock:
        try:
            with path.open("rb") as file:
                count = _checked(engine, path, file)
                file.seek(-_DIGEST - count * (_DIGEST + _size(engine)), 2)
                return _take(engine, file, count)
        except OSError as exc:
            raise ModelError(f"{path}: cannot be read: {exc.strerror or exc}") from exc


def _check_kind(engine: Engine) -> None:
    if engine.config.delta:
        raise UsageError(
            "the prompt cache of a model with delta nets cannot be saved or loaded: blocks of keys and values are of "
            "no use without the states of its delta nets at the same position, and those are not saved"
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
    """Keys, then values, of every layer."""
    size = block_bytes(engine.config, engine.options.kv_dtype)
    cache = engine.cache()
    for buffer in (*cache.keys, *cache.values):
        yield buffer.part(block * size, size)


def _size(engine: Engine) -> int:
    return 2 * engine.config.attention_layers * block_bytes(engine.config, engine.options.kv_dtype)


def _identity(engine: Engine) -> dict[str, Any]:
    """What a file must agree with: the model's bytes, and how its cache is laid out."""
    made = {"kv": engine.options.kv_dtype, "activation_group_size": engine.config.activation_group_size}
    return {"model": engine.source.sha256(), **made, "tokens": KV_BLOCK, "size": _size(engine)}


def _checked(engine: Engine, path: Path, file: BinaryIO) -> int:
    """Blocks of a file that is whole and of this model; nothing is kept in memory meanwhile."""
    start = file.read(len(MAGIC) + 4)
    if len(start) < len(MAGIC) + 4 or not start.startswith(MAGIC):
        raise ModelError(f"{path}: is no saved state of bitnet")
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
            raise ModelError(f"{path}: is the state of {what}; load it with what it was saved with")
    total = len(start) + length + count * (_DIGEST + _size(engine)) + _DIGEST
    if path.stat().st_size != total:
        raise ModelError(f"{path}: is cut off or has something added: {path.stat().st_size:,} bytes, not {total:,}")
    digest, left = hashlib.sha256(start + text), total - len(start) - length - _DIGEST
    while left:
        piece = file.read(min(left, 1 << 20))
        if not piece:
            raise ModelError(f"{path}: is cut off")
        digest.update(piece)
        left -= len(piece)
    if file.read(_DIGEST) != digest.digest():
        raise ModelError(f"{path}: is damaged: its content has not the hash that it states")
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
