"""The packed matrices of an MLX folder: find the tensors that belong together, and check that they fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.hf.safetensors_file import StoredTensor
from bitnet_core.formats.keys import short
from bitnet_core.formats.ternary.mlx import BINARY_BITS, WIDTHS, Pack

_PARTS = (".scales", ".biases")
_GROUPS = (32, 64, 128)


class Packs:
    """The packs among a folder's tensors (by canonical name). bits: as in Quantization.mlx."""

    def __init__(self, tensors: Mapping[str, StoredTensor], bits: Mapping[str, int]) -> None:
        self._tensors, self._bits = tensors, bits

    def has(self, name: str) -> bool:
        """Return whether this tensor is packed."""
        return bool(self._bits) and name in self._tensors and self._tensors[name].dtype == "U32"

    def is_part(self, name: str) -> bool:
        """Return whether this tensor belongs to a pack."""
        stem = name.removesuffix(".scales").removesuffix(".biases")
        return stem != name and self.has(stem)

    def bits(self, name: str) -> int:
        """Return the bits of a code of a packed matrix. Raises ModelError for an unsupported width."""
        bits = self._bits.get(name, self._bits[""])
        if bits not in WIDTHS:
            raise ModelError(
                f"is packed in {bits} bits; only packs in 1 or 2 bits are supported: use the model's GGUF file"
            )
        return bits

    def widths(self, names: Collection[str]) -> str:
        """Describe the widths of these matrices: "ternary 2-bit", "binary 1-bit"."""
        found = sorted({self.bits(name) for name in names if self.has(name)}, reverse=True)
        return " + ".join("binary 1-bit" if bits == BINARY_BITS else f"ternary {bits}-bit" for bits in found)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the matrix, not of its words."""
        rows, *words = self._tensors[name].shape
        return (rows, *(count * 32 // self.bits(name) for count in words))

    def pack(self, name: str) -> Pack:
        """Return the packed matrix. Raises ModelError if its parts are missing or do not fit."""
        tensor = self._tensors[name]
        rows, columns = self.shape(name)
        scales, biases = (self._part(name, part, rows) for part in _PARTS)
        if scales.shape != biases.shape or columns % scales.shape[1] or columns // scales.shape[1] not in _GROUPS:
            raise ModelError(
                f"has {columns} columns, scales of shape {list(scales.shape)} and biases of shape "
                f"{list(biases.shape)}: not one of each for 32, 64 or 128 columns"
            )
        return Pack(self.bits(name), tensor.data.reshape(rows, -1), scales, biases)

    def _part(self, name: str, part: str, rows: int) -> npt.NDArray[np.float32]:
        tensor = self._tensors.get(name + part)
        if tensor is None:
            raise ModelError(f"is packed and has no {part[1:]}")
        kind = dense.KERNEL_TYPES.get(tensor.dtype)
        if kind is None or len(tensor.shape) != 2 or tensor.shape[0] != rows or not tensor.shape[1]:
            raise ModelError(f"has {part[1:]} of type {tensor.dtype} and shape {short(list(tensor.shape))}")
        return dense.decode(tensor.data.reshape(rows, -1), kind, tensor.shape[1])
