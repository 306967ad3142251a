"""A GGUF file as a ModelSource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense, weight_checks
from bitnet_core.formats.gguf import maple, prediction_heads, qwen35
from bitnet_core.formats.gguf import ternary as gguf_ternary
from bitnet_core.formats.gguf.config import read_config
from bitnet_core.formats.gguf.container import Tensor
from bitnet_core.formats.gguf.describe import summary, vision_findings
from bitnet_core.formats.gguf.hadamard import Signs
from bitnet_core.formats.gguf.multipliers import read_multipliers
from bitnet_core.formats.gguf.parts import open_gguf
from bitnet_core.formats.gguf.prediction_heads import in_heads
from bitnet_core.formats.gguf.types import I2_S_TAIL
from bitnet_core.formats.i2_s_layout.statistics import Decision, Neurons, decide
from bitnet_core.formats.keys import MetadataReader
from bitnet_core.formats.mapped import forget_pages
from bitnet_core.formats.names import INPUT_NORM, floats, tables, ternaries
from bitnet_core.formats.rotation import Order, reordered
from bitnet_core.formats.ternary import i2_s
from bitnet_core.formats.ternary.tiles import Tiles
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import Finding, TensorInfo
from bitnet_core.model.weights import DenseWeight, TernaryWeight
from bitnet_core.options.loading import Layout


class GGUFSource:
    """An open GGUF model.

    layout: the byte layout of I2_S. tiles: tile sizes of TL1 and TL2 matrices. quantize: float matrices may be master
    weights, which are quantized as they are read. Raises ModelError if the file does not hold a supported model.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout | None = None,
        tiles: Tiles | None = None,
        quantize: bool = False,
        mapped: bool = True,
    ) -> None:
        self._file = open_gguf(path, mapped)
        try:
            self._tensors = {name.removesuffix(".weight"): tensor for name, tensor in self._file.tensors.items()}
            if not self._tensors:
                raise ModelError(f"{path}: has no tensors: it holds a vocabulary, not a model")
            self._config, findings = read_config(path, self._file.metadata, self._tensors.keys())
            arch = self._config.arch
            keys = MetadataReader(path, self._file.metadata, f"{arch}.")
            stored, self._tensors = self._tensors, {}
            self._tensors = {name: tensor for name, tensor in stored.items() if not in_heads(keys, name)}
            self._check_types()
            self._signs: Signs = {}
            if self._config.hadamard:
                self._signs = qwen35.rotation_of(path, self._file.metadata, self._config).signs
            self._multipliers = read_multipliers(path, keys, arch)
            if self._config.delta:
                self._tensors = qwen35.renamed(self._config, self._tensors)
            shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
            if self._config.delta:
                shapes = qwen35.shapes(path, self._config, shapes)
            if self._config.experts:
                shapes = maple.flattened(self._config, shapes)
            weight_checks.check_shapes(path, self._config, shapes)
            self._config = replace(self._config, ternary_tables=self._has_ternary_tables())
            findings += self._read_head(keys, stored)
            self._matrices = ternaries(self._config)
            self._tiles, self._quantize = tiles, quantize
            self._findings = [*findings, *weight_checks.gguf_tokenizer(path, self._config, self._file.metadata)]
            self._findings += vision_findings(path)
            self._shown = {key: summary(value) for key, value in self._file.metadata.items()}
            self._scale_blocks: dict[str, int] = {}
            self._findings += self._look()
            self._decision = self._decide(layout)
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
        names = dict.fromkeys(self._tensors[name].type.name for name in self._matrices)
        decision = self._decision
        kinds = [f"I2_S layout {decision.layout} ({decision.basis})" if name == "I2_S" else name for name in names]
        return f"GGUF v{self._file.version}, {' + '.join(kinds)}"

    @property
    def findings(self) -> Sequence[Finding]:
        if not self.has_i2_s:
            return tuple(self._findings)
        decision = self._decision
        text = f"I2_S layout {decision.layout} ({decision.basis}): {decision.evidence}"
        return (*self._findings, Finding("info", "i2_s-layout", text))

    @property
    def tensors(self) -> Sequence[TensorInfo]:
        return [TensorInfo(t.name, t.type.name, t.shape, t.nbytes) for t in self._file.tensors.values()]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._shown

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        keys = {key: value for key, value in self._file.metadata.items() if key.startswith("tokenizer.")}
        self._file.forget_metadata()  # the tokenizer that the caller builds keeps a vocabulary of its own
        return {"kind": "gguf", **{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in keys.items()}}

    def ternary(self, name: str) -> TernaryWeight:
        return self._decoded(name, stored=False)

    def stored_ternary(self, name: str) -> TernaryWeight:
        return self._decoded(name, stored=True)

    def _decoded(self, name: str, *, stored: bool) -> TernaryWeight:
        tensor = self._tensor(name)
        rows, columns = _matrix(tensor)
        try:
            data = self._file.data(tensor)
            weight = gguf_ternary.decode(
                data, tensor.type.name, rows, columns, self._decision.layout, self._tiles, self._quantize, stored
            )
            weight = self._multipliers.matrix(name, self._with_extra_scale(name, weight))
            weight = reordered(weight, self._order(name))
            weight_checks.check_scales(weight.scales)
        except ModelError as error:
            raise ModelError(f"{self.path}: tensor {tensor.name!r}: {error}") from error
        return weight

    def scale_block(self, name: str) -> int:
        return self._scale_blocks[name]

    def dense(self, name: str) -> DenseWeight:
        tensor = self._tensor(name)
        rows, columns = _matrix(tensor)
        if tensor.type.name in gguf_ternary.GROUPED:
            return dense.from_ternary(self.ternary(name))
        try:
            weight = dense.from_file(self._file.data(tensor), tensor.type.name, rows, columns)
            order = self._order(name)
            return weight if order is None else replace(weight, rows=len(order), data=weight.data[order])
        except ModelError as error:
            raise ModelError(f"{self.path}: tensor {tensor.name!r}: {error}") from error

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        if name in self._signs:
            return self._signs[name]
        tensor = self._tensor(name)
        kind = dense.KERNEL_TYPES.get(tensor.type.name)
        if kind is None or len(tensor.shape) != 1:
            raise ModelError(
                f"{self.path}: tensor {tensor.name!r} of type {tensor.type.name} is not a vector of numbers"
            )
        values = dense.decode(self._file.data(tensor)[None], kind, tensor.shape[0]).reshape(-1)
        order = self._order(name)
        return self._multipliers.vector(name, values if order is None else values[order])

    def has(self, name: str) -> bool:
        return name in self._tensors

    @property
    def has_i2_s(self) -> bool:
        """Return whether any matrix is stored as I2_S."""
        return any(self._tensors[name].type.name == "I2_S" for name in self._matrices)

    @property
    def i2_s_layouts(self) -> tuple[Layout, ...]:
        """Return the layouts that can hold every I2_S matrix of the model."""
        shapes = [shape for name, shape in self._matrices.items() if self._tensors[name].type.name == "I2_S"]
        return tuple(kind for kind in i2_s.LAYOUTS if all(i2_s.fits(*shape, kind) for shape in shapes))

    @property
    def layout(self) -> Decision:
        """The layout of I2_S matrices and its reason; setting it changes later results of `ternary`."""
        return self._decision

    @layout.setter
    def layout(self, decision: Decision) -> None:
        self._decision = decision

    def sha256(self) -> str:
        return self._file.sha256()

    def release(self) -> None:
        forget_pages(self._file.data(next(iter(self._tensors.values()))))

    def close(self) -> None:
        self._file.close()

    def _read_head(self, keys: MetadataReader, stored: Mapping[str, Tensor]) -> list[Finding]:
        """Add the tensors of the first prediction head if they can be used; returns a finding if the file has one."""
        config = self._config
        if not config.delta:
            return prediction_heads.findings(keys, "this architecture's is not supported")
        head = prediction_heads.first_head(stored, config.n_layers)
        shapes = {name: tensor.shape for name, tensor in head.items()}
        reason = prediction_heads.unusable(config, shapes, {name: tensor.type.name for name, tensor in head.items()})
        reason = reason or next((tensor.fault for tensor in head.values() if tensor.fault), "")
        if qwen35.rotated_heads(self.path, self._file.metadata, keys):
            reason = "its matrices are rotated, which is not supported"
        if not reason:
            self._tensors |= head
            self._config = replace(config, prediction_head=True)
        return prediction_heads.findings(keys, reason)

    def _check_types(self) -> None:
        """Raise ModelError for a tensor that cannot be read."""
        for tensor in self._tensors.values():
            if tensor.fault:
                raise ModelError(f"{self.path}: tensor {tensor.name!r} {tensor.fault}")

    def _tensor(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise ModelError(f"{self.path}: has no tensor {name!r}") from None

    def _order(self, name: str) -> Order | None:
        if self._config.delta:
            return qwen35.row_order(self._config, name)
        return maple.row_order(self._config, name) if self._config.windows else None

    def _has_ternary_tables(self) -> bool:
        """Return whether both embedding and head can be used as ternary.

        If not, or if activations have one scale per row, the tables are converted to f16.
        """
        kinds = {self._tensors[name].type.name for name in tables(self._config)}
        return bool(self._config.activation_group_size) and kinds <= gguf_ternary.GROUPED

    def _with_extra_scale(self, name: str, weight: TernaryWeight) -> TernaryWeight:
        """Multiply in the separate scale of old `bitnet` files, which hold +-1 weights and a scale for the product."""
        if f"{name}.scale" not in self._tensors:
            return weight
        with np.errstate(all="ignore"):
            scales = weight.scales * self.vector(f"{name}.scale")
        return replace(weight, scales=scales)

    def _look(self) -> list[Finding]:
        """Check norms, scales and shares of non-zero codes, and return findings about odd matrices.

        Raises ModelError for biases and unsound values.
        """
        odd, small = weight_checks.ChecksReport(), floats(self._config)
        for name, tensor in self._tensors.items():
            try:
                if name.endswith(".bias") and self.vector(name).any():
                    raise ModelError("is a bias, and layers with biases are not supported")
                if name in self._matrices:
                    scales, self._scale_blocks[name], share = gguf_ternary.sample(
                        self._file.data(tensor), tensor.type, *_matrix(tensor), self._tiles, self._quantize
                    )
                    weight_checks.check_scales(scales)
                    odd.inspect(name, scales, None if tensor.type.name == "Q1_0" else share)
                elif len(tensor.shape) == 1:
                    weight_checks.check_norm(self.vector(name))
                elif name in small:
                    weight = self.dense(name)
                    weight_checks.check_norm(dense.decode(weight.data, weight.dtype, weight.columns))
            except ModelError as error:
                raise ModelError(f"{self.path}: tensor {tensor.name!r}: {error}") from error
        return odd.findings()

    def _decide(self, given: Layout | None) -> Decision:
        if not self.has_i2_s:
            return Decision("A", "given", "the model has no I2_S matrices")
        if self._config.experts:
            raise ModelError(f"{self.path}: I2_S is not supported in a mixture of experts; get a TQ1_0 or TQ2_0 file")
        fitting = self.i2_s_layouts
        if not fitting or (given and given not in fitting):
            raise ModelError(
                f"{self.path}: {f'layout {given}' if given else 'no layout'} of I2_S can hold the matrices"
            )
        return Decision(given, "given", "asked for by the caller") if given else decide(fitting, self._neurons())

    def _neurons(self) -> Iterator[Neurons]:
        """Yield the matrices of a few layers, spread over the model."""
        config = self._config
        for i in sorted({i * (config.n_layers - 1) // 3 for i in range(4)}):
            up, down = self._tensors[f"blk.{i}.ffn_up"], self._tensors[f"blk.{i}.ffn_down"]
            if up.type.name == down.type.name == "I2_S":
                norm = self.vector(f"blk.{i}.{name}") if (name := _norm_of_neurons(config)) else None
                up_codes, down_codes = (self._file.data(tensor)[:-I2_S_TAIL] for tensor in (up, down))
                yield Neurons(config.hidden, config.ffn, up_codes, down_codes, norm)


def _norm_of_neurons(config: ModelConfig) -> str:
    """Return the name of the norm of the input of ffn_down, "" if there is none."""
    return f"ffn_down{INPUT_NORM}" if config.projection_norms else "ffn_sub_norm" if config.sub_norms else ""


def _matrix(tensor: Tensor) -> tuple[int, int]:
    """Return the rows and columns; experts' tensors of three dimensions are stacked by rows."""
    if len(tensor.shape) == 3:
        return tensor.shape[0] * tensor.shape[1], tensor.shape[2]
    if len(tensor.shape) != 2:
        raise ModelError(f"tensor {tensor.name!r} of shape {list(tensor.shape)} is not a matrix")
    return tensor.shape[0], tensor.shape[1]
