"""A Hugging Face or MLX folder (config.json, safetensors, tokenizer.json) as a ModelSource."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.rounding import ceil_div

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense, weight_checks
from bitnet_core.formats.hf.config import read_config
from bitnet_core.formats.hf.folder import chat_template, model_name, weight_files
from bitnet_core.formats.hf.mlx import Packs
from bitnet_core.formats.hf.names import canonical
from bitnet_core.formats.hf.safetensors_file import LEAST, StoredTensor, read_safetensors
from bitnet_core.formats.json_file import read_object, read_text
from bitnet_core.formats.mapped import FileBytes, forget_pages, sha256
from bitnet_core.formats.names import matrices, tables, ternaries
from bitnet_core.formats.pooling import pooling_of_folder
from bitnet_core.formats.ternary import floats, hf_packed, mlx
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import Finding, TensorInfo
from bitnet_core.model.weights import DenseWeight, TernaryWeight
from bitnet_core.tokenizer.huggingface import count_tokens

_MAX_TOKENIZER = 1 << 26  # bytes; Llama 3's file has 17 million
_SAMPLE = 1 << 14  # packed bytes of a matrix checked when the folder is opened
_SAMPLE_ROWS = 32  # rows of a float matrix or an MLX pack checked then
_FLOATS = ("F32", "F16", "BF16")


class HuggingFaceSource:
    """An open Hugging Face folder. Raises ModelError if it does not hold a supported model."""

    def __init__(self, folder: Path, mapped: bool = True) -> None:
        self._folder = folder
        self._files = [FileBytes(path, LEAST, mapped) for path in weight_files(folder)]
        self._values = read_object(folder / "config.json")
        generation = folder / "generation_config.json"
        self._generation = read_object(generation) if generation.is_file() else None
        self._tensors = self._read_tensors()
        name = model_name(folder)
        config, self._quantization = read_config(folder / "config.json", self._values, self._tensors.keys(), name)
        pooling, assumed = pooling_of_folder(folder, config.projection_norms)
        config = replace(config, pooling=pooling)
        self._packs = Packs(self._tensors, self._quantization.mlx)
        self._config, self._matrices = config, matrices(config)
        shapes = {name: self._shape(name) for name in self._tensors if not self._packs.is_part(name)}
        weight_checks.check_shapes(folder, config, shapes)
        ternary_tables = bool(config.activation_group_size) and all(self._is_ternary(name) for name in tables(config))
        self._config = replace(config, ternary_tables=ternary_tables, vocab_tokens=self._tokens())
        self._matrices = ternaries(self._config)
        self._scale_blocks: dict[str, int] = {}
        self._findings = [*assumed, *self._find()]

    @property
    def path(self) -> Path:
        return self._folder

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def format(self) -> str:
        kinds = dict.fromkeys(self._tensors[name].dtype for name in self._matrices)
        if self._quantization.mlx:
            return f"MLX safetensors, {self._packs.widths(self._matrices)} packs"
        if self._quantization.grouped:
            return f"Hugging Face safetensors, {' + '.join(kinds)} that are ternary in groups"
        packed = f"packed U8 ({self._quantization.direction} by weight_scale)"
        words = [packed if kind == "U8" else f"{kind} masters (absmean)" for kind in kinds]
        return f"Hugging Face safetensors, {' + '.join(words)}"

    @property
    def findings(self) -> Sequence[Finding]:
        return tuple(self._findings)

    @property
    def tensors(self) -> Sequence[TensorInfo]:
        return [TensorInfo(t.name, t.dtype, t.shape, t.data.size) for t in self._tensors.values()]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._values | ({"generation_config": self._generation} if self._generation is not None else {})

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        parts: dict[str, Any] = {"kind": "hf"}
        if (self._folder / "tokenizer.json").is_file():
            parts["tokenizer_json"] = read_text(self._folder / "tokenizer.json", _MAX_TOKENIZER)
        file = self._folder / "tokenizer_config.json"
        parts["tokenizer_config"] = read_object(file) if file.is_file() else {}
        parts["generation_config"] = dict(self._generation or {})
        if (template := chat_template(self._folder, "default", "chat_template.jinja")) is not None:
            parts["tokenizer_config"]["chat_template"] = template
        if (template := chat_template(self._folder, "tool_use")) is not None:
            parts["tool_template"] = template
        parts["generation_config"].setdefault("eos_token_id", self._values.get("eos_token_id"))
        return parts

    def ternary(self, name: str) -> TernaryWeight:
        tensor = self._tensor(name)
        if name not in self._matrices:
            raise ModelError(f"{self.path}: tensor {tensor.name!r} is not a linear layer")
        rows, columns = self._matrices[name]
        try:
            weight = self._decode(name, tensor, rows, columns)
            weight_checks.check_scales(weight.scales)
        except ModelError as error:
            raise ModelError(f"{self.path}: tensor {tensor.name!r}: {error}") from error
        return weight

    def stored_ternary(self, name: str) -> TernaryWeight:
        return self.ternary(name)

    def scale_block(self, name: str) -> int:
        return self._scale_blocks.get(name, 0)

    def dense(self, name: str) -> DenseWeight:
        tensor = self._tensor(name)
        if self._packs.has(name):
            return self._unpacked(name)
        if tensor.dtype not in _FLOATS or len(tensor.shape) != 2:
            raise ModelError(f"{self.path}: tensor {tensor.name!r} of type {tensor.dtype} is not a float matrix")
        return dense.from_file(tensor.data, tensor.dtype, *tensor.shape)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self._tensor(name)
        if tensor.dtype not in _FLOATS or len(tensor.shape) > 1:
            raise ModelError(f"{self.path}: tensor {tensor.name!r} of type {tensor.dtype} is not a vector of floats")
        kind = dense.KERNEL_TYPES[tensor.dtype]
        return dense.decode(tensor.data[None], kind, tensor.shape[0] if tensor.shape else 1).reshape(-1)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def sha256(self) -> str:
        return sha256(self._files)

    def release(self) -> None:
        for tensor in self._tensors.values():
            forget_pages(tensor.data)

    def close(self) -> None:
        self._tensors = {}

    def _read_tensors(self) -> dict[str, StoredTensor]:
        """Return all tensors of all files by canonical name."""
        tensors: dict[str, StoredTensor] = {}
        for file in self._files:
            path = file.path
            for stored in read_safetensors(file).values():
                name = canonical(stored.name)
                if name is None:
                    raise ModelError(f"{path}: tensor {stored.name!r} is unknown: an unsupported kind of model")
                if name in tensors:
                    raise ModelError(f"{path}: tensor {stored.name!r} appears twice, also as {tensors[name].name!r}")
                if name:
                    tensors[name] = stored
        return tensors

    def _tensor(self, name: str) -> StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise ModelError(f"{self.path}: has no tensor {name!r}") from None

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the matrix, not of its packed bytes."""
        tensor = self._tensors[name]
        if self._packs.has(name):
            try:
                return self._packs.shape(name)
            except ModelError as error:
                raise ModelError(f"{self._folder}: tensor {tensor.name!r}: {error}") from error
        if tensor.dtype == "U8" and name in self._matrices and len(tensor.shape) == 2:
            rows = self._matrices[name][0]
            slab, columns = tensor.shape
            return (rows if slab == ceil_div(rows, 4) else 4 * slab, columns)
        return tensor.shape

    def _decode(self, name: str, tensor: StoredTensor, rows: int, columns: int) -> TernaryWeight:
        if tensor.dtype == "U8":
            codes = hf_packed.decode_codes(tensor.data.reshape(-1, columns), rows)
            return TernaryWeight(rows, columns, codes, self._scale(name))
        if self._packs.has(name):
            return mlx.ternary(self._packs.pack(name))
        if tensor.dtype not in _FLOATS:
            raise ModelError(f"type {tensor.dtype} is not supported for a ternary matrix")
        raw = tensor.data.reshape(rows, -1)

        def values_of(part: slice) -> npt.NDArray[np.float32]:
            return dense.decode(raw[part], dense.KERNEL_TYPES[tensor.dtype], columns)

        if self._quantization.grouped:
            return floats.grouped(rows, columns, values_of)
        return floats.absmean(rows, columns, values_of)

    def _unpacked(self, name: str) -> DenseWeight:
        try:
            pack = self._packs.pack(name)
            return dense.from_ternary(mlx.ternary(pack)) if pack.bits in mlx.TERNARY_WIDTHS else mlx.floats(pack)
        except ModelError as error:
            raise ModelError(f"{self.path}: tensor {self._tensors[name].name!r}: {error}") from error

    def _is_ternary(self, name: str) -> bool:
        """Return whether a table is ternary, judged by its bits or by some of its rows."""
        if self._packs.has(name):
            return self._packs.bits(name) in mlx.TERNARY_WIDTHS
        tensor = self._tensors[name]
        return tensor.dtype in _FLOATS and floats.group_of(self._some_rows(tensor)) > 0

    def _some_rows(self, tensor: StoredTensor) -> npt.NDArray[np.float32]:
        """Return a few rows of a float matrix, spread over it: f32[n, columns]."""
        rows, columns = tensor.shape
        raw = tensor.data.reshape(rows, -1)[:: ceil_div(rows, _SAMPLE_ROWS)]
        return dense.decode(raw, dense.KERNEL_TYPES[tensor.dtype], columns)

    def _tokens(self) -> int:
        """Return the number of ids up to the last token of tokenizer.json; 0 if it is not known.

        Raises ModelError if that is more than the embedding's rows.
        """
        file = self._folder / "tokenizer.json"
        count = count_tokens(read_object(file, _MAX_TOKENIZER)) if file.is_file() else 0
        if count > self._config.vocab:
            raise ModelError(f"{file}: has {count} tokens but only {self._config.vocab} rows of the embedding")
        return count

    def _scale(self, name: str) -> npt.NDArray[np.float32]:
        """Return the factor of the codes' values, f32[1], from weight_scale in the direction of the linear class."""
        stored = self.vector(f"{name}.scale")
        if self._quantization.direction == "multiply":
            return stored
        with np.errstate(all="ignore"):
            return np.float32(1) / stored

    def _find(self) -> list[Finding]:
        """Check norms and scales, and return findings about the folder. Raises ModelError for biases and unsound
        values."""
        findings = []
        if not (self._folder / "tokenizer.json").is_file():
            findings.append(Finding("warning", "missing-tokenizer", "the folder has no tokenizer.json"))
        odd, stored, masters = weight_checks.ChecksReport(), [], False
        for name, tensor in self._tensors.items():
            try:
                if name.endswith(".bias") and self.vector(name).any():
                    raise ModelError("is a bias, and layers with biases are not supported")
                if name in self._matrices and tensor.dtype == "U8":
                    self._look(name, tensor, odd)
                    stored.append(float(self.vector(f"{name}.scale")[0]))
                elif name in self._matrices and (self._packs.has(name) or self._quantization.grouped):
                    self._look_at_groups(name, tensor, odd)
                elif name in self._matrices:
                    masters = True
                elif len(tensor.shape) == 1:
                    weight_checks.check_norm(self.vector(name))
            except ModelError as error:
                raise ModelError(f"{self._folder}: tensor {tensor.name!r}: {error}") from error
        if masters:
            text = "float master weights are quantized at load (absmean per matrix)"
            findings.append(Finding("info", "masters-quantized", text))
        quantization = self._quantization
        return [
            *findings,
            *odd.findings(),
            *weight_checks.scale_direction(stored, quantization.direction, quantization.linear_class),
        ]

    def _look_at_groups(self, name: str, tensor: StoredTensor, odd: weight_checks.ChecksReport) -> None:
        """Check some rows of a matrix with a scale for each group of columns."""
        if self._packs.has(name):
            pack = self._packs.pack(name)
            weight = mlx.ternary(pack.picked(slice(None, None, ceil_div(len(pack.words), _SAMPLE_ROWS))))
        elif tensor.dtype in _FLOATS:
            values = self._some_rows(tensor)
            weight = floats.grouped(len(values), values.shape[1], lambda part: values[part])
        else:
            raise ModelError(f"type {tensor.dtype} is not supported for a ternary matrix")
        self._scale_blocks[name] = weight.block
        weight_checks.check_scales(weight.scales)
        odd.inspect(name, weight.scales, weight_checks.nonzero_share(weight.codes, weight.rows * weight.columns))

    def _look(self, name: str, tensor: StoredTensor, odd: weight_checks.ChecksReport) -> None:
        """Check the scale and the first packed rows of a matrix."""
        if not self.has(f"{name}.scale"):
            raise ModelError("is packed but has no weight_scale")
        scale = self._scale(name)
        weight_checks.check_scales(scale)
        columns = tensor.shape[1]
        first = tensor.data[: max(_SAMPLE // columns, 1) * columns]
        odd.inspect(name, scale, weight_checks.nonzero_share(first, 4 * first.size))
