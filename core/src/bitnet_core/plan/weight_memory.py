"""Device memory of weights: filled in chunks, or on unified devices host memory that is wrapped without a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Buffer, Device, TransferMode, View, whole

from bitnet_core.model.weights import TernaryWeight
from bitnet_core.plan.repacking import Repacker
from bitnet_core.plan.shared_buffers import SharedBuffers
from bitnet_core.plan.view_limits import rows_per_part, view_limit

UPLOAD_CHUNK = 32 << 20
"""Bytes per upload, so that the pages of a mapped file need not all stay in memory."""

Place = Callable[[View, int, npt.NDArray[np.uint8]], None]
"""A function that writes rows u8[n, bytes] of an array to rows of a view from a number on."""


class WeightMemory:
    """Buffers of weights on a device. path: the model's file, for errors. advance: called with the bytes of each part.
    repacker: converts blocks of Q2_0, on devices that can.

    limit: maximum bytes of a view, 0 for no limit. buffers: all buffers. hosts: the wrapped arrays. allocated, wrapped:
    bytes of buffers on the device and of wrapped arrays. placed: bytes of matrices that were copied or wrapped.
    """

    def __init__(
        self, device: Device, path: Path, advance: Callable[[int], None], repacker: Repacker | None = None
    ) -> None:
        self.device = device
        self.repacker = repacker
        self.limit = view_limit(device.info)
        self.unified = device.info.transfer is TransferMode.UNIFIED
        self.buffers: list[Buffer] = []
        self.hosts: list[npt.NDArray[Any]] = []
        self.allocated = 0
        self.wrapped = 0
        self.placed = 0
        self._path = path
        self._advance = advance
        self._vectors = SharedBuffers(self._buffer, device.info.alignment)

    @property
    def views_file(self) -> bool:
        """True if a buffer views the mapped file."""
        return not all(_own_memory(host) for host in self.hosts)

    def vector(self, values: npt.NDArray[np.float32]) -> View:
        """Upload f32 values to a shared buffer."""
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        view = self._vectors.view(flat.nbytes)
        self.device.upload(view, flat.data.cast("B"))
        return view

    def rows(self, arrays: Sequence[npt.NDArray[np.uint8]]) -> list[tuple[int, int, View]]:
        """Upload u8[rows, row_bytes] arrays, or wrap them without a copy on a unified device. Returns (first row, rows,
        view) of every part."""
        arrays = [np.ascontiguousarray(array) for array in arrays]
        placed = self._wrapped(arrays) if self.unified else None
        if placed is not None:
            return placed
        return self._copied(arrays[0].shape[1], [(array, self._upload) for array in arrays])

    def codes(self, weights: Sequence[TernaryWeight]) -> list[tuple[int, int, View]]:
        """Place the codes of matrices of one width, as `rows`; the device converts blocks of Q2_0."""
        if not any(weight.stored for weight in weights):
            return self.rows([weight.codes for weight in weights])
        return self._copied(weights[0].width // 4, [(weight.codes, self._place(weight)) for weight in weights])

    def _place(self, weight: TernaryWeight) -> Place:
        if not weight.stored:
            return self._upload
        assert self.repacker is not None  # nobody else asks for blocks
        return partial(self.repacker.upload, weight)

    def _rows_per_part(self, row_bytes: int, rows: int) -> int:
        return rows_per_part(self._path, self.limit, row_bytes, rows)

    def _wrapped(self, arrays: Sequence[npt.NDArray[np.uint8]]) -> list[tuple[int, int, View]] | None:
        placed: list[tuple[int, int, View]] = []
        first = 0
        for array in arrays:
            step = self._rows_per_part(array.shape[1], len(array))
            for start in range(0, len(array), step):
                piece = array[start : start + step]
                buffer = self.device.wrap(piece.reshape(-1).data)
                if buffer is None:
                    for _, _, view in placed:
                        self.device.free(view.buffer)
                    return None
                placed.append((first + start, len(piece), View(buffer, 0, piece.nbytes)))
            first += len(array)
        self.buffers += [view.buffer for _, _, view in placed]
        self.hosts += arrays
        for array in arrays:
            self.wrapped += array.nbytes
            self._note(array.nbytes)
        return placed

    def _upload(self, view: View, first: int, rows: npt.NDArray[np.uint8]) -> None:
        self.device.upload(view.part(first * rows.shape[1], rows.nbytes), rows.reshape(-1).data)

    def _copied(
        self, row_bytes: int, arrays: Sequence[tuple[npt.NDArray[np.uint8], Place]]
    ) -> list[tuple[int, int, View]]:
        """Place arrays u8[rows, bytes], whose rows have `row_bytes` on the device."""
        rows = sum(len(array) for array, _ in arrays)
        step = self._rows_per_part(row_bytes, rows)
        parts = [(first, min(step, rows - first)) for first in range(0, rows, step)]
        placed = [(first, count, self._buffer(count * row_bytes)) for first, count in parts]
        start = 0  # row of the stack where `array` begins
        for array, place in arrays:
            chunk = max(1, UPLOAD_CHUNK // array.shape[1])
            for first, count, view in placed:
                row = max(first, start)
                end = min(first + count, start + len(array))
                while row < end:
                    piece = array[row - start : min(row + chunk, end) - start]
                    place(view, row - first, piece)
                    row += len(piece)
                    self._note(len(piece) * row_bytes)
            start += len(array)
        return placed

    def _note(self, nbytes: int) -> None:
        self.placed += nbytes
        self._advance(nbytes)

    def _buffer(self, nbytes: int) -> View:
        buffer = self.device.alloc(nbytes)
        self.allocated += nbytes
        self.buffers.append(buffer)
        return whole(buffer).part(0, nbytes)


def _own_memory(array: npt.NDArray[Any]) -> bool:
    """Return True if numpy allocated the memory; False for a mapped file's."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base is None
