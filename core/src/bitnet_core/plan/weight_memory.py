"""Device memory of weights: filled in chunks, or on unified devices host memory that is wrapped without a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Buffer, Device, TransferMode, View, whole

from bitnet_core.plan.shared_buffers import SharedBuffers
from bitnet_core.plan.view_limits import rows_per_part, view_limit

UPLOAD_CHUNK = 32 << 20
"""Bytes per upload, so that the pages of a mapped file need not all stay in memory."""


class WeightMemory:
    """Buffers of weights on a device. path: the model's file, for errors. advance: called with the bytes of each part.

    limit: maximum bytes of a view, 0 for no limit. buffers: all buffers. hosts: the wrapped arrays. allocated, wrapped:
    bytes of buffers on the device and of wrapped arrays. placed: bytes of matrices that were copied or wrapped.
    """

    def __init__(self, device: Device, path: Path, advance: Callable[[int], None]) -> None:
        self.device = device
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
        return self._copied(arrays) if placed is None else placed

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

    def _copied(self, arrays: Sequence[npt.NDArray[np.uint8]]) -> list[tuple[int, int, View]]:
        row_bytes = arrays[0].shape[1]
        rows = sum(len(array) for array in arrays)
        step = self._rows_per_part(row_bytes, rows)
        parts = [(first, min(step, rows - first)) for first in range(0, rows, step)]
        placed = [(first, count, self._buffer(count * row_bytes)) for first, count in parts]
        chunk = max(1, UPLOAD_CHUNK // row_bytes)
        start = 0  # row of the stack where `array` begins
        for array in arrays:
            for first, count, view in placed:
                row = max(first, start)
                end = min(first + count, start + len(array))
                while row < end:
                    piece = array[row - start : min(row + chunk, end) - start]
                    self.device.upload(view.part((row - first) * row_bytes, piece.nbytes), piece.reshape(-1).data)
                    row += len(piece)
                    self._note(piece.nbytes)
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
