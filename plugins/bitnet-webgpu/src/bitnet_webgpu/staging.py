"""Buffers from which the host reads copies of device memory."""

from __future__ import annotations

from bitnet_hal.plugin import words_of

from bitnet_webgpu.driver import ffi, lib, mapping, raw
from bitnet_webgpu.errors import converted
from bitnet_webgpu.recording import QueuedDevice


class StagingBuffer:
    """A buffer that is copied to, then mapped and read. buffer: the target of copies while it is not mapped."""

    def __init__(self, device: QueuedDevice, nbytes: int) -> None:
        self.buffer = device._made(nbytes, "COPY_DST|MAP_READ")
        self._name = device.info.name
        self._raw = raw(self.buffer.handle)
        self._statuses: list[int] = []
        self._mapping = mapping(self._statuses.append)
        self._asked = False  # to be mapped, and not unmapped since

    def map(self, nbytes: int) -> None:
        """Ask for the first bytes to be mapped once the commands submitted so far have written them."""
        native = lib()
        self._asked = True
        native.wgpuBufferMapAsync(self._raw, native.WGPUMapMode_Read, 0, words_of(nbytes), self._mapping[0][0])

    def ready(self) -> bool:
        """Return whether the request of `map` was answered, which happens in `poll`."""
        return bool(self._statuses)

    def read(self, target: memoryview) -> None:
        """Copy the first mapped bytes to the host and unmap the buffer. Raises DeviceLostError if it is not mapped."""
        native = lib()
        if self._statuses != [native.WGPUMapAsyncStatus_Success]:
            raise converted(RuntimeError("device was lost: memory cannot be mapped"), "download", self._name)
        nbytes = len(target)
        target[:] = ffi().buffer(native.wgpuBufferGetConstMappedRange(self._raw, 0, words_of(nbytes)), nbytes)
        self.unmap()

    def unmap(self) -> None:
        """Make the buffer usable for copies, whether its last contents were read or not."""
        if self._asked:
            lib().wgpuBufferUnmap(self._raw)
        self._asked = False
        self._statuses.clear()

    def destroy(self) -> None:
        """Free the memory."""
        self.buffer.handle.destroy()
