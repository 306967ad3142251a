"""Write GGUF v3 files: metadata, then declared tensors whose bytes are streamed in order."""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from bitnet_hal.rounding import round_up

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.types import ALIGNMENT, BY_NAME, MAGIC, SCALARS, ValueType

Value: TypeAlias = bool | int | float | str | Sequence[str] | npt.NDArray[np.generic]


class GGUFWriter:
    """A GGUF v3 file that appears at `path` only when it is complete.

    Use as a context manager: add metadata, declare every tensor, then write the tensors' bytes in the declared order.
    Leaving the block renames the temporary file to `path`; an exception removes it. Raises ModelError if the bytes
    differ from the declaration.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metadata: dict[str, bytes] = {}
        self._tensors: dict[str, tuple[bytes, int]] = {}  # encoded dims and type, and byte count
        self._pending: list[str] = []
        self._file: BinaryIO | None = None
        self._temporary: Path | None = None

    def metadata(self, key: str, value: Value, kind: ValueType | None = None) -> None:
        """Add a key-value. Without `kind`, bool is BOOL, int UINT32 (INT32 below zero), float FLOAT32, str STRING; a
        sequence of str and a numpy array are arrays (of the numpy dtype)."""
        self._before_writing()
        self._metadata[key] = _string(key) + _value(value, kind)

    def tensor(self, name: str, shape: tuple[int, ...], dtype: str, nbytes: int) -> None:
        """Declare a tensor of `shape` (last dimension innermost) and of the type named `dtype` ("F32", "I2_S")."""
        self._before_writing()
        kind = BY_NAME[dtype]
        if name in self._tensors or kind.nbytes(shape) != nbytes:
            raise ModelError(f"tensor {name!r} of {nbytes} bytes and shape {list(shape)} is not a new {dtype} tensor")
        dims = struct.pack(f"<I{len(shape)}Qi", len(shape), *reversed(shape), kind.id)
        self._tensors[name] = (dims, nbytes)
        self._pending.append(name)

    def write(self, name: str, chunks: Iterable[npt.NDArray[np.generic]]) -> None:
        """Write the bytes of the next declared tensor, which must be `name`, from C-contiguous arrays."""
        file = self._open()
        if not self._pending or self._pending[0] != name:
            raise ModelError(f"tensor {name!r} is written out of order")
        nbytes = self._tensors[name][1]
        written = 0
        for chunk in chunks:
            written += file.write(np.ascontiguousarray(chunk).data)
        if written != nbytes:
            raise ModelError(f"tensor {name!r} has {written} bytes instead of the {nbytes} declared")
        file.write(bytes(-nbytes % ALIGNMENT))
        self._pending.pop(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            if self._file is not None:
                self._file.close()
            if self._temporary is not None:
                self._temporary.unlink(missing_ok=True)

    def _before_writing(self) -> None:
        if self._file is not None:
            raise ModelError("metadata and tensors must be declared before the first tensor is written")

    def _open(self) -> BinaryIO:
        """Return the temporary file beside the final one, creating it with its header."""
        if self._file is None:
            temporary = self.path.with_name(f".{self.path.name[:100]}.{secrets.token_hex(8)}.tmp")
            self._file = temporary.open("xb")
            self._temporary = temporary
            self._file.write(self._header())
        return self._file

    def _header(self) -> bytes:
        parts = [MAGIC, struct.pack("<IQQ", 3, len(self._tensors), len(self._metadata)), *self._metadata.values()]
        offset = 0
        for name, (dims, nbytes) in self._tensors.items():
            parts += [_string(name), dims, struct.pack("<Q", offset)]
            offset += round_up(nbytes, ALIGNMENT)
        header = b"".join(parts)
        return header + bytes(-len(header) % ALIGNMENT)

    def _finish(self) -> None:
        file = self._open()
        if self._pending:
            raise ModelError(f"tensor {self._pending[0]!r} was declared but never written")
        file.flush()
        os.fsync(file.fileno())
        file.close()
        if self._temporary is not None:
            self._temporary.replace(self.path)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: Value, kind: ValueType | None) -> bytes:
    if isinstance(value, str):
        return struct.pack("<i", ValueType.STRING) + _string(value)
    if isinstance(value, np.ndarray):
        element = _kind_of(value.dtype)
        data = np.ascontiguousarray(value, SCALARS[element]).tobytes()
        return struct.pack("<iiQ", ValueType.ARRAY, element, value.size) + data
    if isinstance(value, Sequence):
        return struct.pack("<iiQ", ValueType.ARRAY, ValueType.STRING, len(value)) + b"".join(map(_string, value))
    if kind is None:
        kind = _scalar_kind(value)
    return struct.pack("<i", kind) + np.array(value, SCALARS[kind]).tobytes()


def _scalar_kind(value: bool | int | float) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, float):
        return ValueType.FLOAT32
    if value < 0:
        return ValueType.INT32
    return ValueType.UINT32 if value < 1 << 32 else ValueType.UINT64


def _kind_of(dtype: np.dtype[np.generic]) -> ValueType:
    if dtype == np.bool_:
        return ValueType.BOOL
    for kind, code in SCALARS.items():
        if dtype == np.dtype(code):
            return kind
    raise ModelError(f"GGUF has no array type for {dtype}")
