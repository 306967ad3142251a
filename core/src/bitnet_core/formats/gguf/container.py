"""The GGUF container, versions 2 and 3: metadata and tensor spans of a mapped file.

The file is untrusted: every count, length, type and offset is compared with the bytes present before it is used, and
the size of the header's content is bounded, so that no file makes the reader allocate more than a small multiple of its
own size.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.rounding import round_up

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.types import (
    ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    SCALARS,
    TensorType,
    ValueType,
    most_bytes,
    resolve,
)
from bitnet_core.formats.mapped import FileBytes, sha256
from bitnet_core.string_table import StringTable

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 22  # elements of all string arrays together; the largest vocabularies need about 2^20
MAX_ELEMENTS = 1 << 24  # elements of one numeric array
MAX_NAME = 256  # characters of a name that a message may repeat
MAX_RANK_ELEMENTS = 1 << 40
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's place in the file.

    shape: last dimension innermost, as in numpy. fault: the reason why the tensor cannot be read ("" if it can); its
    type and bytes then mean nothing.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int
    fault: str = ""


class GGUFFile:
    """An open, mapped GGUF file.

    Raises ModelError if the file is not a sound little-endian GGUF v2 or v3 file. Tensors of unknown types, and those
    that do not fit, have a `fault`: the file may be of a kind that is not supported for a better reason, or need none
    of them.
    """

    def __init__(self, path: Path, mapped: bool = True) -> None:
        self.path = path
        self._content: FileBytes | None = FileBytes(path, len(MAGIC) + 20, mapped)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._content.buffer, np.uint8)
        self.size = size = self._bytes.size
        header = _Header(path, self._content.buffer)
        self.version = header.version
        self._metadata: dict[str, Any] | None = header.metadata
        self.tensors: dict[str, Tensor] = _place(path, header, size)

    @property
    def metadata(self) -> dict[str, Any]:
        """Return every key-value; arrays of numbers are numpy arrays, arrays of strings are StringTables."""
        if self._metadata is None:
            self._metadata = _Header(self.path, self.content.buffer).metadata
        return self._metadata

    def sha256(self) -> str:
        """Return the hex digest of the bytes that were opened."""
        return sha256([self.content])

    @property
    def content(self) -> FileBytes:
        """Return the file's bytes. Raises ModelError if it is closed."""
        if self._content is None:
            raise ModelError(f"{self.path}: the file is closed")
        return self._content

    def forget_metadata(self) -> None:
        """Free the memory of the metadata (a vocabulary's strings); the next access reads it again."""
        self._metadata = None

    def data(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """Return the tensor's bytes as a read-only view of the file."""
        _ = self.content
        return self._bytes[tensor.offset : tensor.offset + tensor.nbytes]

    def close(self) -> None:
        """Release the mapping; it is unmapped with its last view."""
        self._content = None
        self._bytes = np.empty(0, np.uint8)


class _Header:
    """Reader of the header, front to back; every read is bounded by the end of the file."""

    def __init__(self, path: Path, buffer: mmap.mmap | bytes) -> None:
        self._path = path
        self._buffer = buffer
        self._end = len(buffer)
        self._at = 0
        self._strings = 0
        if self._take(4) != MAGIC:
            raise ModelError(f"{path}: not a GGUF file (it does not start with the letters GGUF)")
        self.version = self._number("<I")
        if self.version & 0xFFFF == 0:
            raise ModelError(f"{path}: a big-endian GGUF file; only little-endian files are read")
        if self.version not in _VERSIONS:
            raise ModelError(
                f"{path}: GGUF version {self.version} is not supported, only 2 and 3; convert the model again"
            )
        n_tensors = self._count(MAX_TENSORS, 24, "tensors")
        n_keys = self._count(MAX_KEYS, 13, "metadata keys")
        self.metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._string("a metadata key", MAX_NAME)
            if key in self.metadata:
                raise self._bad(f"the metadata key {key!r} appears twice")
            self.metadata[key] = self._value(key)
        self.infos = [self._info() for _ in range(n_tensors)]
        self.end = self._at

    def _bad(self, what: str) -> ModelError:
        return ModelError(f"{self._path}: damaged GGUF header: {what} (at byte {self._at}); get the file again")

    def _take(self, nbytes: int) -> bytes:
        if nbytes > self._end - self._at:
            raise self._bad(f"{nbytes} bytes are needed and {self._end - self._at} are left: the file is cut off")
        self._at += nbytes
        return self._buffer[self._at - nbytes : self._at]

    def _number(self, code: str) -> int:
        value: int = struct.unpack(code, self._take(struct.calcsize(code)))[0]
        return value

    def _count(self, limit: int, each: int, what: str) -> int:
        count = self._number("<Q")
        if count > limit or count * each > self._end - self._at:
            raise self._bad(f"it claims {count} {what}, more than the file or a limit of {limit} allows")
        return count

    def _string(self, what: str, limit: int) -> str:
        length = self._number("<Q")
        if length > limit:
            raise self._bad(f"{what} of {length} bytes is longer than the limit of {limit}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise self._bad(f"{what} is not UTF-8") from error

    def _type(self, key: str) -> ValueType:
        number = self._number("<i")
        try:
            return ValueType(number)
        except ValueError as error:
            raise self._bad(f"the value of {key!r} has the unknown type {number}") from error

    def _value(self, key: str) -> Any:
        kind = self._type(key)
        if kind is ValueType.STRING:
            return self._string(f"the value of {key!r}", self._end)
        if kind is ValueType.ARRAY:
            return self._array(key)
        dtype = np.dtype(SCALARS[kind])
        value = np.frombuffer(self._take(dtype.itemsize), dtype)[0].item()
        return bool(value) if kind is ValueType.BOOL else value

    def _array(self, key: str) -> npt.NDArray[Any] | StringTable:
        kind = self._type(key)
        if kind is ValueType.ARRAY:
            raise self._bad(f"{key!r} is an array of arrays, which is not supported")
        if kind is ValueType.STRING:
            return self._string_array(key)
        dtype = np.dtype(SCALARS[kind])
        count = self._count(MAX_ELEMENTS, dtype.itemsize, f"elements of {key!r}")
        array = np.frombuffer(self._take(count * dtype.itemsize), dtype)
        return array.astype(np.bool_) if kind is ValueType.BOOL else array

    def _string_array(self, key: str) -> StringTable:
        count = self._count(MAX_STRINGS - self._strings, 8, f"elements of {key!r}")
        self._strings += count
        if found := StringTable.found(self._buffer, self._at, count):
            strings, self._at = found
            return strings
        buffer, at, end, length_of = self._buffer, self._at, self._end, struct.Struct("<Q").unpack_from
        texts: list[str] = []
        for _ in range(count):
            if at + 8 > end or (stop := at + 8 + length_of(buffer, at)[0]) > end:
                raise self._bad(f"element {len(texts)} of {key!r} runs past the end of the file: it is cut off")
            try:
                texts.append(buffer[at + 8 : stop].decode())
            except UnicodeDecodeError as error:
                raise self._bad(f"element {len(texts)} of {key!r} is not UTF-8") from error
            at = stop
        self._at = at
        return StringTable.of(texts)

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return name, shape, type id and offset (relative to the data section) of one tensor."""
        name = self._string("a tensor name", MAX_NAME)
        rank = self._number("<I")
        if not 1 <= rank <= MAX_DIMS:
            raise self._bad(f"tensor {name!r} has {rank} dimensions, not 1 to {MAX_DIMS}")
        shape = tuple(self._number("<Q") for _ in range(rank))[::-1]
        if min(shape) < 1 or prod(shape) > MAX_RANK_ELEMENTS:
            raise self._bad(f"tensor {name!r} has the impossible shape {list(shape)}")
        return name, shape, self._number("<i"), self._number("<Q")


def _place(path: Path, header: _Header, size: int) -> dict[str, Tensor]:
    """Check the offsets against each other and the end of the file, and resolve each tensor's type by its span."""
    alignment = header.metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        raise ModelError(f"{path}: general.alignment is {alignment!r}, not a power of two up to 65536")
    start = round_up(header.end, alignment)
    ordered = sorted(header.infos, key=lambda info: info[3])
    ends = [*(start + info[3] for info in ordered[1:]), size][: len(ordered)]
    placed: dict[str, Tensor] = {}
    for (name, shape, type_id, relative), end in zip(ordered, ends, strict=True):
        offset = start + relative
        if relative % alignment:
            raise ModelError(f"{path}: tensor {name!r} starts at an offset that is not a multiple of {alignment}")
        if offset >= size:
            raise ModelError(
                f"{path}: tensor {name!r} starts past the end of the file: it is cut off; get the file again"
            )
        if name in placed:
            raise ModelError(f"{path}: tensor {name!r} appears twice")
        kind = resolve(type_id, shape, end - offset, alignment)
        if isinstance(kind, str) and end == size and most_bytes(type_id, shape) > size - offset:
            kind += ": it seems cut off; get the file again"
        if isinstance(kind, str):
            placed[name] = Tensor(name, TensorType(type_id, f"id {type_id}", 1, 0), shape, offset, 0, kind)
            continue
        fault = f"has type {kind.name} (id {type_id}): {kind.refusal}" if kind.refusal else ""
        placed[name] = Tensor(name, kind, shape, offset, kind.nbytes(shape) or 0, fault)
    return {info[0]: placed[info[0]] for info in header.infos}
