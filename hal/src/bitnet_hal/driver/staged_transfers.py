"""Devices whose bytes come and go through slots of page-locked memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic

from bitnet_hal.base import BaseDevice
from bitnet_hal.device import TransferMode
from bitnet_hal.launches import B, K

if TYPE_CHECKING:
    from bitnet_hal.driver.staging import StagingRing


class StagedDevice(BaseDevice[B, K]):
    """Uploads take the slots in turn, downloads the last one. A plugin calls `_stage` when it opens the device, and
    `_ring.drained` at the end of `_wait`."""

    def _stage(self, slots: Sequence[B], views: Sequence[memoryview]) -> None:
        """slots: three buffers of one size or more, whose bytes the host sees as `views`."""
        self._slots, self._views = slots, views
        from bitnet_hal.driver.staging import StagingRing  # needs numpy, which plugins that list devices do without

        self._ring: StagingRing[B] = StagingRing(views[:-1], _SlotCopies(self))

    def held_bytes(self) -> int:
        """The slots', where host and device share memory."""
        return sum(map(len, self._views)) if self.info.transfer is TransferMode.UNIFIED else 0

    @abstractmethod
    def _fence(self) -> Any:
        """Something that is reached when all that is queued so far is done; the device begins."""

    @abstractmethod
    def _reach(self, fence: Any) -> None:
        """Wait until it is reached; GpuTimeoutError after `timeout` seconds."""

    def _upload(self, buffer: B, offset: int, source: memoryview) -> None:
        self._ring.upload(buffer, offset, source)

    def _download(self, buffer: B, offset: int, target: memoryview) -> None:
        size = len(self._views[-1])
        for start in range(0, len(target), size):
            part = target[start : start + size]
            self._copy(buffer, offset + start, self._slots[-1], 0, len(part))
            self._wait()
            part[:] = self._views[-1][: len(part)]


class _SlotCopies(Generic[B]):
    """See bitnet_hal.driver.staging.Copies."""

    def __init__(self, device: StagedDevice[B, Any]) -> None:
        self._device = device
        self.fence, self.wait = device._fence, device._reach

    def copy(self, slot: int, start: int, nbytes: int, buffer: B, offset: int) -> None:
        self._device._copy(self._device._slots[slot], start, buffer, offset, nbytes)
