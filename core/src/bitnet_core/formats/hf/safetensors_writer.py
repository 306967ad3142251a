"""Write a safetensors file whose tensors are streamed in order.

The public library's writer needs all tensors in memory at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.hf.safetensors_file import DTYPES

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """A tensor to be written."""

    name: str
    dtype: str  # "U8", "BF16", "F16" or "F32"
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype]


def write_safetensors(
    path: Path, tensors: Sequence[TensorHeader], data: Iterable[tuple[str, Iterable[npt.NDArray[np.generic]]]]
) -> None:
    """Write the tensors in the declared order from (name, C-contiguous arrays).

    Raises ModelError if the data does not match the declarations.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor, (name, chunks) in zip(tensors, data, strict=True):
            written = sum(file.write(np.ascontiguousarray(chunk).data) for chunk in chunks)
            if name != tensor.name or written != tensor.nbytes:
                raise ModelError(f"tensor {tensor.name!r} of {tensor.nbytes} bytes got {written} bytes of {name!r}")
        file.flush()
        os.fsync(file.fileno())
