"""Conversion of Q2_0 codes by the device: a file's blocks are uploaded as they are, and a kernel writes canonical
codes."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Buffer, Device, DeviceInfo, TransferMode, View, whole
from bitnet_hal.errors import GpuError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher

from bitnet_core.model.weights import TernaryWeight

KERNEL = CATALOGUE["repack_q2_0"]


class OddBlocksError(Exception):
    """A matrix has illegal codes, or blocks of zeros with a scale: the host must convert it, and find out which."""


def can_repack(info: DeviceInfo) -> bool:
    """Return whether a device converts codes; one that shares the host's memory uses those that the host converted."""
    return KERNEL.name in info.kernels and info.transfer is not TransferMode.UNIFIED


class Repacker:
    """Uploads rows of blocks and converts them, on a device with the kernel. `close` frees its memory.

    used: True once it has asked for memory.
    """

    def __init__(self, device: Device) -> None:
        self.used = False
        self._device = device
        self._launcher = Launcher(device)
        self._odd: Buffer | None = None
        self._blocks: Buffer | None = None

    def upload(self, weight: TernaryWeight, view: View, first: int, blocks: npt.NDArray[np.uint8]) -> None:
        """Convert rows of a weight, blocks u8[rows, row_bytes], to rows of a view u8[*, width / 4] from `first` on."""
        self.used = True
        if self._odd is None:
            self._odd = self._device.alloc(4)  # 0
        room = self._room(blocks.nbytes)
        self._device.upload(room, blocks.reshape(-1).data)
        params = {"rows": len(blocks), "columns": weight.columns, "width": weight.width, "first": first}
        views = room, view, whole(self._odd)
        self._launcher.run([self._launcher.prepare(KERNEL, params, views, {"BLOCK": weight.stored})])

    def check(self) -> None:
        """Wait for the device. Raises OddBlocksError if a block was odd."""
        if self._odd is None:
            return
        found = np.zeros(1, np.int32)
        self._device.download(whole(self._odd), found.data.cast("B"))
        if found[0]:
            raise OddBlocksError

    def close(self) -> None:
        """Free the memory and kernels, unless the device is lost."""
        with suppress(GpuError):
            self._launcher.release()
            for buffer in (self._odd, self._blocks):
                if buffer is not None:
                    self._device.free(buffer)

    def _room(self, nbytes: int) -> View:
        """Return device memory for blocks, which later calls overwrite; transfers and launches keep their order."""
        if self._blocks is None or self._blocks.nbytes < nbytes:
            if self._blocks is not None:
                self._device.free(self._blocks)
                self._blocks = None
            self._blocks = self._device.alloc(nbytes)
        return View(self._blocks, 0, nbytes)
