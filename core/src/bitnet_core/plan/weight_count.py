"""Count the bytes that a model's weights take on a device, by running the upload with a memory that only counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device, DeviceInfo, MemoryKind, View, whole
from bitnet_hal.rounding import ceil_div

from bitnet_core.formats.names import prediction_vectors
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import DenseWeight, TernaryWeight, padded
from bitnet_core.plan.prediction_weights import PredictionWeights, prediction_bytes
from bitnet_core.plan.upload import WeightUploader
from bitnet_core.plan.view_limits import view_limit
from bitnet_core.plan.weight_memory import WeightMemory
from bitnet_core.plan.weight_sizes import rotary_bytes, table_names, table_type


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of weights: allocated on the device, and in host memory that it reads in place."""

    allocated: int
    wrapped: int


def weight_sizes(source: ModelSource, config: ModelConfig, info: DeviceInfo, positions: int) -> WeightSizes:
    """Return the bytes of the layers and tables of `config` on a device, with a rotary table for `positions` positions.

    A device that shares the host's memory is assumed to wrap every matrix. Raises ModelError and UsageError if a matrix
    row or the rotary table exceeds the device's largest binding.
    """
    known = _known.setdefault(source, {})
    key = config, positions, info.transfer, view_limit(info), info.alignment
    if key not in known:
        memory = _CountingMemory(info, source.path)
        _Counter(source, config, info, memory).all(positions, prediction=config.prediction_head)
        known[key] = WeightSizes(memory.allocated, memory.wrapped)
    return known[key]


_known: WeakKeyDictionary[ModelSource, dict[tuple[object, ...], WeightSizes]] = WeakKeyDictionary()
"""Results by source and by what they depend on: loading a model asks several times, and counting takes 25 ms for 64
layers."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A buffer that is only counted."""

    nbytes: int
    kind: MemoryKind = MemoryKind.DEVICE


@dataclass(frozen=True, slots=True)
class _PlannedDevice:
    """The methods of Device that a _CountingMemory uses."""

    info: DeviceInfo

    def alloc(self, nbytes: int) -> _Planned:
        return _Planned(nbytes)


class _CountingMemory(WeightMemory):
    """A WeightMemory that counts bytes and places nothing."""

    def __init__(self, info: DeviceInfo, path: Path) -> None:
        super().__init__(cast(Device, _PlannedDevice(info)), path, lambda nbytes: None)

    def vector(self, values: npt.NDArray[np.float32]) -> View:
        return self._vectors.view(4 * values.size)

    def rows(self, arrays: Sequence[npt.NDArray[np.uint8]]) -> list[tuple[int, int, View]]:
        row_bytes = arrays[0].shape[1]
        counts = [len(array) for array in arrays]
        self.count(sum(counts) * row_bytes)
        placed: list[tuple[int, int, View]] = []
        first = 0
        for rows in counts if self.unified else [sum(counts)]:
            step = self._rows_per_part(row_bytes, rows)
            for start in range(0, rows, step):
                part = min(step, rows - start)
                placed.append((first + start, part, whole(_Planned(part * row_bytes))))
            first += rows
        return placed

    def count(self, nbytes: int) -> None:
        """Add the bytes of a matrix."""
        if self.unified:
            self.wrapped += nbytes
        else:
            self.allocated += nbytes


class _Counter(WeightUploader):
    """Uploads arrays of zeros in the shapes of the weights; memory: a _CountingMemory."""

    def _read_ahead(self, names: Iterable[str], readers: Executor) -> None:
        """Do nothing: no matrix is read."""

    def _ternary(self, name: str, shape: tuple[int, int]) -> TernaryWeight:
        rows, columns = shape
        codes = _zeros(np.uint8, rows, padded(columns) // 4)
        return TernaryWeight(rows, columns, codes, _zeros(np.float32, 1), block=self.source.scale_block(name))

    def _scales(self, weights: Sequence[TernaryWeight], block: int) -> npt.NDArray[np.float32]:
        return _zeros(np.float32, sum(w.rows for w in weights), ceil_div(weights[0].width, block) if block else 1)

    def _floats(self, name: str, shape: tuple[int, int]) -> DenseWeight:
        if name not in table_names(self.config):
            return super()._floats(name, shape)
        dtype, row_bytes = table_type(self.source, name)
        return DenseWeight(dtype, *shape, _zeros(np.uint8, shape[0], row_bytes))

    def _vector(self, name: str, size: int) -> npt.NDArray[np.float32]:
        return _zeros(np.float32, size)

    def _rope(self, positions: int) -> npt.NDArray[np.float32]:
        return _zeros(np.float32, rotary_bytes(self.config, self.info, positions) // 4)

    def _prediction(self) -> PredictionWeights | None:
        """Count the prediction head as one matrix, because its matrices may be converted."""
        cast(_CountingMemory, self.memory).count(prediction_bytes(self.source))
        for width in prediction_vectors(self.config).values():
            self.memory.vector(_zeros(np.float32, width))
        return None


def _zeros(dtype: type, *shape: int) -> npt.NDArray[Any]:
    """Return zeros that take no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
