"""A GGUF file as a ModelSource."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense, gguf_ternary, sanity
from bitnet_core.formats.gguf import GGUFFile, Tensor
from bitnet_core.formats.gguf_config import read_config
from bitnet_core.formats.names import matrices
from bitnet_core.formats.source import Finding, TensorInfo
from bitnet_core.formats.ternary import i2_s
from bitnet_core.formats.ternary.tiles import Tiles
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.weights import DenseWeight, TernaryWeight

_LONG = 16  # elements of an array that `metadata` shows in full


class GGUFSource:
    """An open GGUF model.

    layout: how I2_S bytes are read. tiles: tile sizes of TL1 and TL2 matrices.
    Raises ModelError if the file is no supported model.
    """

    def __init__(self, path: Path, layout: i2_s.Layout | None = None, tiles: Tiles | None = None) -> None:
        self._file = GGUFFile(path)
        try:
            self._tensors = {name.removesuffix(".weight"): tensor for name, tensor in self._file.tensors.items()}
            self._config, findings = read_config(path, self._file.metadata, self._tensors.keys())
            shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
            sanity.check_shapes(path, self._config, shapes)
            self._check_biases()
            self.layout: i2_s.Layout = layout or "A"
            self._tiles = tiles
            self._findings: list[Finding] = findings
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def format(self) -> str:
        names = dict.fromkeys(self._tensors[name].type.name for name in matrices(self._config))
        kinds = [f"{name} layout {self.layout}" if name == "I2_S" else name for name in names]
        return f"GGUF v{self._file.version}, {' + '.join(kinds)}"

    @property
    def findings(self) -> Sequence[Finding]:
        return tuple(self._findings)

    @property
    def tensors(self) -> Sequence[TensorInfo]:
        return [TensorInfo(t.name, t.type.name, t.shape, t.nbytes) for t in self._file.tensors.values()]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {key: _summary(value) for key, value in self._file.metadata.items()}

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        keys = {key: value for key, value in self._file.metadata.items() if key.startswith("tokenizer.")}
        return {"kind": "gguf", **{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in keys.items()}}

    def ternary(self, name: str) -> TernaryWeight:
        tensor = self._tensor(name)
        rows, columns = _matrix(tensor)
        try:
            data = self._file.data(tensor)
            weight = gguf_ternary.decode(data, tensor.type.name, rows, columns, self.layout, self._tiles)
        except ModelError as error:
            raise ModelError(f"{self.path}: tensor {tensor.name!r}: {error}") from error
        return self._with_extra_scale(name, weight)

    def dense(self, name: str) -> DenseWeight:
        tensor = self._tensor(name)
        rows, columns = _matrix(tensor)
        try:
            return dense.from_file(self._file.data(tensor), tensor.type.name, rows, columns)
        except ModelError as error:
            raise ModelError(f"{self.path}: tensor {tensor.name!r}: {error}") from error

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self._tensor(name)
        kind = dense.KERNEL_TYPES.get(tensor.type.name)
        if kind is None or len(tensor.shape) != 1:
            raise ModelError(f"{self.path}: tensor {tensor.name!r} of type {tensor.type.name} is no vector of numbers")
        return dense.decode(self._file.data(tensor)[None], kind, tensor.shape[0]).reshape(-1)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def sha256(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def close(self) -> None:
        self._file.close()

    def _tensor(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise ModelError(f"{self.path}: has no tensor {name!r}") from None

    def _with_extra_scale(self, name: str, weight: TernaryWeight) -> TernaryWeight:
        """Old `bitnet` files hold +-1 weights and a separate scale for the output of the matrix product."""
        if f"{name}.scale" not in self._tensors:
            return weight
        scale = self.vector(f"{name}.scale")
        return TernaryWeight(
            weight.rows, weight.columns, weight.codes, weight.scales * scale, weight.scale_kind, weight.block
        )

    def _check_biases(self) -> None:
        for name, tensor in self._tensors.items():
            if name.endswith(".bias") and self.vector(name).any():
                raise ModelError(f"{self.path}: tensor {tensor.name!r} is a bias, and layers with biases do not run")


def _matrix(tensor: Tensor) -> tuple[int, int]:
    if len(tensor.shape) != 2:
        raise ModelError(f"tensor {tensor.name!r} of shape {list(tensor.shape)} is not a matrix")
    return tensor.shape[0], tensor.shape[1]


def _summary(value: Any) -> Any:
    """Long arrays as a few words, short ones as lists."""
    if isinstance(value, list | np.ndarray):
        if len(value) > _LONG:
            kind = "strings" if isinstance(value, list) else str(value.dtype)
            return f"[{len(value)} {kind}]"
        return list(value) if isinstance(value, list) else value.tolist()
    return value
