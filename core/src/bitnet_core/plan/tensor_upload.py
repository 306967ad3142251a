"""Upload the tensors of a model file: vectors, and matrices, which threads read ahead and which are stacked by rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from itertools import groupby

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import DeviceInfo, View
from bitnet_hal.kernels.catalogue import DENSE_TYPES
from bitnet_hal.rounding import ceil_div

from bitnet_core.errors import ModelError
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import DenseWeight, TernaryWeight
from bitnet_core.plan.device_weights import Dense, DensePart, Linear, LinearPart
from bitnet_core.plan.weight_memory import WeightMemory
from bitnet_core.plan.weight_sizes import device_block


class TensorUploader:
    """Uploads tensors of a source by name to the memory of a device. Raises ModelError for one that does not have the
    expected shape."""

    def __init__(self, source: ModelSource, config: ModelConfig, info: DeviceInfo, memory: WeightMemory) -> None:
        self.source = source
        self.config = config
        self.info = info
        self.memory = memory
        self.being_read: dict[str, Future[TernaryWeight]] = {}
        self._read = source.ternary if memory.repacker is None else source.stored_ternary

    def _read_ahead(self, names: Iterable[str], readers: Executor) -> None:
        """Start reading matrices in threads, except on devices that share the host's memory, to save memory."""
        for name in names:
            if name not in self.being_read and not self.memory.unified:
                self.being_read[name] = readers.submit(self._read, name)

    def _linear(self, prefix: str, shapes: Mapping[str, tuple[int, int]], *names: str) -> Linear:
        """Upload matrices of a layer that share their input, stacked by rows."""
        return self._stacked([self._ternary(prefix + name, shapes[name]) for name in names])

    def _stacked(self, weights: Sequence[TernaryWeight]) -> Linear:
        """Stack matrices by rows. Adjacent ones with the same kind of scales share a launch if they are copied."""
        parts: list[LinearPart] = []
        first = 0
        for block, group in groupby(weights, lambda weight: device_block(self.config, weight.block)):
            same = list(group)
            scales = self._scales(same, block)
            for start, count, view in self.memory.codes(same):
                part = self.memory.vector(scales[start : start + count])
                parts.append(LinearPart(view, part, count, first + start, block))
            first += len(scales)
        return Linear(first, weights[0].columns, tuple(parts))

    def _scales(self, weights: Sequence[TernaryWeight], block: int) -> npt.NDArray[np.float32]:
        """Return the scales of matrices stacked by rows: f32[rows], or f32[rows, blocks] if block is not 0."""
        scales = [_row_scales(weight, block) for weight in weights]
        return scales[0] if len(scales) == 1 else np.concatenate(scales)

    def _ternary(self, name: str, shape: tuple[int, int]) -> TernaryWeight:
        weight = self.being_read.pop(name).result() if name in self.being_read else self._read(name)
        self._check_shape(name, (weight.rows, weight.columns), shape)
        return weight

    def _floats(self, name: str, shape: tuple[int, int]) -> DenseWeight:
        weight = self.source.dense(name)
        self._check_shape(name, (weight.rows, weight.columns), shape)
        return weight

    def _dense(self, weights: Sequence[DenseWeight]) -> Dense:
        """Upload matrices of one type, stacked by rows."""
        data = [weight.data for weight in weights]
        first = weights[0]
        parts = tuple(DensePart(view, start, count) for start, count, view in self.memory.rows(data))
        return Dense(DENSE_TYPES.index(first.dtype), sum(map(len, data)), first.columns, parts)

    def _norm(self, name: str, size: int) -> View:
        return self.memory.vector(self._vector(name, size))

    def _vector(self, name: str, size: int) -> npt.NDArray[np.float32]:
        values = self.source.vector(name)
        if values.shape != (size,):
            raise ModelError(f"{self.source.path}: {name} has shape {list(values.shape)}, not [{size}]")
        return values

    def _check_shape(self, name: str, shape: tuple[int, int], expected: tuple[int, int]) -> None:
        if shape != expected:
            raise ModelError(
                f"{self.source.path}: {name} is {shape[0]} x {shape[1]}, not {expected[0]} x {expected[1]}"
            )


def _row_scales(weight: TernaryWeight, block: int) -> npt.NDArray[np.float32]:
    """Return f32[rows] if block is 0, else f32[rows, ceil(width / block)], zero for blocks that are all padding."""
    rows = np.broadcast_to(weight.scales.reshape(-1), (weight.rows,)) if weight.scale_kind != "block" else weight.scales
    if not block:
        return rows.astype(np.float32)
    if rows.shape == (weight.rows, ceil_div(weight.width, block)):
        return rows
    scales = np.zeros((weight.rows, ceil_div(weight.width, block)), np.float32)
    if weight.scale_kind == "block":
        scales[:, : rows.shape[1]] = rows
    else:
        scales[:] = rows[:, None]
    return scales
