"""The prompt cache on disk: full blocks of keys and values with the block hashes of their tokens, and the state
checkpoints of delta nets.

Layout: MAGIC, u32 length of the header, the header (JSON), for each block its hash (32 bytes) and then keys and values
of every layer, for each checkpoint the hash of its last block and then the states of every delta net, and at the end
the SHA-256 of everything before it. All of it is validated against the engine before a byte is used, because the file
is untrusted. The checksum detects damage; a forged file can change cached numbers only.
"""

from __future__ import annotations

import hashlib
import json
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from bitnet_hal.device import Device, View
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.output import new_file

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.kv_cache.cache import KVCache, block_bytes
from bitnet_core.errors import ModelError

MAGIC = b"BITNETKV1\n"
_DIGEST = hashlib.sha256().digest_size
_LONGEST_HEADER = 4096


def save_state(engine: Engine, path: Path, *, force: bool = False) -> int:
    """Write all full blocks of the cache, and all state checkpoints, and return the number of blocks. Raises UsageError
    if the file cannot be written."""
    with engine.lock:
        blocks = engine.cached_blocks()
        states = engine.state_checkpoints.cached
        header = json.dumps(_identity(engine) | {"blocks": len(blocks), "states": len(states)}).encode()
        with new_file(path, [engine.source.path], force=force) as file:
            written = hashlib.sha256()
            for part in _parts(engine, blocks, states, MAGIC + struct.pack("<I", len(header)) + header):
                file.write(part)
                written.update(part)
            file.write(written.digest())
    return len(blocks)


def load_state(engine: Engine, path: Path) -> int:
    """Load blocks and state checkpoints of a file into free ones of the cache, and return the number of blocks.

    Nothing is evicted. Raises ModelError, without using the file, if it is damaged or belongs to another model or cache
    layout.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe may block forever while the lock is held
            raise ModelError(f"{path}: cannot be read: it is not a file")
        with path.open("rb") as file, engine.lock:
            count, states = _checked(engine, path, file)
            file.seek(-_DIGEST - _body_size(engine, count, states), 2)
            taken = _take(engine, file, count)
            _take_states(engine, file, states)
            return taken
    except OSError as exc:
        raise ModelError(f"{path}: cannot be read: {exc.strerror or exc}") from exc


def _parts(
    engine: Engine, blocks: list[tuple[bytes, int]], states: list[tuple[bytes, int]], head: bytes
) -> Iterator[bytes]:
    yield head
    for digest, block in blocks:
        yield digest
        yield from map(_read, _views(engine, block))
    for digest, row in states:
        yield digest
        yield from map(_read, _states(engine, row))


def _read(placed: tuple[Device, View]) -> bytes:
    device, view = placed
    data = bytearray(view.nbytes)
    device.download(view, memoryview(data))
    return bytes(data)


def _views(engine: Engine, block: int) -> Iterator[tuple[Device, View]]:
    """Yield the views of one block with their devices: keys of every layer, then values."""
    size = block_bytes(engine.config, engine.options.kv_cache_type)
    caches = _caches(engine)
    for cache in caches:
        yield from ((cache.device, buffer.part(block * size, size)) for buffer in cache.keys)
    for cache in caches:
        yield from ((cache.device, buffer.part(block * size, size)) for buffer in cache.values)


def _states(engine: Engine, row: int) -> Iterator[tuple[Device, View]]:
    """Yield the views of the states in one row with their devices."""
    for cache in _caches(engine):
        yield from ((cache.device, view) for view in cache.states_of(row))


def _caches(engine: Engine) -> tuple[KVCache, ...]:
    """Return the caches of all devices in the order of the layers."""
    last = engine.cache()
    return (*last.others, last)


def _size(engine: Engine) -> int:
    return 2 * engine.config.cached_layers * block_bytes(engine.config, engine.options.kv_cache_type)


def _body_size(engine: Engine, blocks: int, states: int) -> int:
    """Return the bytes of blocks and state checkpoints with their hashes."""
    return blocks * (_DIGEST + _size(engine)) + states * (_DIGEST + engine.config.state_bytes)


def _identity(engine: Engine) -> dict[str, Any]:
    """Return the header fields that must match: the model's hash and the layout of its cache."""
    made = {"kv": engine.options.kv_cache_type, "activation_group_size": engine.config.activation_group_size}
    identity = {"model": engine.source.sha256(), **made, "tokens": KV_BLOCK, "size": _size(engine)}
    return identity | ({"state_size": engine.config.state_bytes} if engine.config.delta else {})


def _checked(engine: Engine, path: Path, file: BinaryIO) -> tuple[int, int]:
    """Validate a file in constant memory and return its numbers of blocks and state checkpoints. Raises ModelError."""
    start = file.read(len(MAGIC) + 4)
    if len(start) < len(MAGIC) + 4 or not start.startswith(MAGIC):
        raise ModelError(f"{path}: is not a saved state of bitnet")
    length = struct.unpack("<I", start[len(MAGIC) :])[0]
    text = file.read(min(length, _LONGEST_HEADER))
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ModelError(f"{path}: its header is damaged") from exc
    blocks = header.get("blocks") if isinstance(header, dict) else None
    states = header.get("states", 0) if isinstance(header, dict) else None
    if length > _LONGEST_HEADER or not _is_count(blocks) or not _is_count(states):
        raise ModelError(f"{path}: its header is damaged")
    for name, value in _identity(engine).items():
        if header.get(name) != value:
            what = "another model" if name == "model" else f"a cache with another {name}"
            raise ModelError(f"{path}: is the state of {what}; load it with the model and options that saved it")
    total = len(start) + length + _body_size(engine, blocks, states) + _DIGEST
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
    return blocks, states


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _take(engine: Engine, file: BinaryIO, count: int) -> int:
    taken = 0
    for _ in range(count):
        digest = file.read(_DIGEST)
        block = engine.block_pool.allocate_for(digest)
        if block is None:
            file.seek(_size(engine), 1)
            continue
        for device, view in _views(engine, block):
            device.upload(view, memoryview(file.read(view.nbytes)))
        engine.block_pool.register(block, digest)
        engine.block_pool.release([block])
        taken += 1
    return taken


def _take_states(engine: Engine, file: BinaryIO, count: int) -> None:
    for _ in range(count):
        digest = file.read(_DIGEST)
        row = engine.state_checkpoints.allocate_for(digest)
        if row is None:
            file.seek(engine.config.state_bytes, 1)
            continue
        for device, view in _states(engine, row):
            device.upload(view, memoryview(file.read(view.nbytes)))
        engine.state_checkpoints.register(digest, row)
