"""The safetensors container: u64 header length, JSON header, data. Tensors are views of the mapped file.

The public library returns copies and, for numpy, does not read bf16, the type of the weights; hence this reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.json_file import LFS_MESSAGE, LFS_POINTER, MAX_BYTES, parse_object
from bitnet_core.formats.keys import short
from bitnet_core.formats.mapped import FileBytes

DTYPES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of an element of each type of the container."""

LEAST = 8
"""Minimum bytes of a header."""

_MAX_RANK = 8
_MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a safetensors file; data is a read-only view u8[nbytes]."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


def read_safetensors(file: FileBytes) -> dict[str, StoredTensor]:
    """Return every tensor of the file. Raises ModelError if the header does not fit the file."""
    path, content = file.path, file.buffer
    size = len(content)
    if content[: len(LFS_POINTER)] == LFS_POINTER:
        raise ModelError(f"{path}: {LFS_MESSAGE}")
    length = int.from_bytes(content[:8], "little")
    if length > min(size - 8, MAX_BYTES):
        raise ModelError(f"{path}: claims a header of {length} bytes in a file of {size}: damaged or cut off")
    try:
        text = content[8 : 8 + length].decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: the header is not UTF-8; get the file again") from error
    header = parse_object(path, text)
    header.pop("__metadata__", None)
    if any(len(name) > _MAX_NAME for name in header):
        raise ModelError(f"{path}: has a tensor whose name is longer than {_MAX_NAME} characters; get the file again")
    data = np.frombuffer(content, np.uint8)[8 + length :]
    tensors = {name: _tensor(path, name, entry, data) for name, entry in header.items()}
    _no_overlap(path, header)
    return tensors


def _tensor(path: Path, name: str, entry: Any, data: npt.NDArray[np.uint8]) -> StoredTensor:
    def bad(what: str) -> ModelError:
        return ModelError(f"{path}: tensor {short(name)} {what}; get the file again")

    if not isinstance(entry, dict):
        raise bad("has no description")
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise bad(f"has the unknown type {short(dtype)}")
    if not _counts(shape) or len(shape) > _MAX_RANK:
        raise bad(f"has the impossible shape {short(shape)}")
    if not _counts(span) or len(span) != 2:
        raise bad(f"has the impossible offsets {short(span)}")
    start, stop = span
    if not start <= stop <= data.size:
        raise bad(f"lies at bytes {short(start)} to {short(stop)} of {data.size}: the file is damaged or cut off")
    if stop - start != prod(shape) * DTYPES[dtype]:
        raise bad(f"has {stop - start} bytes, which do not fit {dtype} of shape {short(shape)}")
    return StoredTensor(name, dtype, tuple(shape), data[start:stop])


def _counts(value: Any) -> TypeGuard[list[int]]:
    """Return whether this is a list of whole numbers of at most 2^48."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n <= 1 << 48 for n in value)


def _no_overlap(path: Path, header: dict[str, Any]) -> None:
    spans = sorted((*entry["data_offsets"], name) for name, entry in header.items())
    for (_, stop, _), (start, _, name) in pairwise(spans):
        if start < stop:
            raise ModelError(f"{path}: tensor {short(name)} overlaps another one; get the file again")
