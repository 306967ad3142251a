"""Base class of devices whose transfers pass through slots of page-locked memory."""

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
    """A device that uploads through all slots but the last, in turn, and downloads through the last.

    A plugin calls `_stage` when it opens the device, and `_ring.drained` at the end of `_wait`.
    """

    def _stage(self, slots: Sequence[B], views: Sequence[memoryview]) -> None:
        """Set the slots: three or more buffers of equal size, which the host accesses through `views`."""
        self._slots = slots
        self._views = views
        from bitnet_hal.driver.staging import StagingRing  # imports numpy, which listing devices does not need

        self._ring: StagingRing[B] = StagingRing(views[:-1], _SlotCopies(self))

    def held_bytes(self) -> int:
        """Return the bytes of the slots if host and device share memory, else 0."""
        return sum(map(len, self._views)) if self.info.transfer is TransferMode.UNIFIED else 0

    @abstractmethod
    def _fence(self) -> Any:
        """Return a fence that is reached when all work queued so far is done, and submit that work."""

    @abstractmethod
    def _reach(self, fence: Any) -> None:
        """Wait for a fence. Raises GpuTimeoutError after `timeout` seconds."""

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
    """The `Copies` of a StagedDevice."""

    def __init__(self, device: StagedDevice[B, Any]) -> None:
        self._device = device
        self.fence = device._fence
        self.wait = device._reach

    def copy(self, slot: int, start: int, nbytes: int, buffer: B, offset: int) -> None:
        self._device._copy(self._device._slots[slot], start, buffer, offset, nbytes)
