"""The WebGPU device: memory, transfers and compilation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bitnet_hal.checks import writes
from bitnet_hal.driver.word_transfers import PART
from bitnet_hal.errors import GpuError
from bitnet_hal.features import MAX_ASYNC_READ
from bitnet_hal.plugin import (
    Constants,
    DeviceType,
    EnumeratedDevice,
    KernelSpec,
    MemoryKind,
    Tuning,
    TuningMixin,
    words_of,
)

from bitnet_webgpu import tuning
from bitnet_webgpu.compile import WebGpuKernel, built, source, stages
from bitnet_webgpu.describe import request
from bitnet_webgpu.errors import converted, raised
from bitnet_webgpu.recording import QueuedDevice, WebGpuBuffer
from bitnet_webgpu.staging import StagingBuffer

_PATIENCE = 12
"""The factor of a GPU's timeout: drivers compile a pipeline at its first dispatch (more than 5 s on an H200)."""
PENDING = 16 << 20
"""The bytes of uploads of which wgpu may hold copies before they are submitted."""


class WebGpuDevice(TuningMixin, QueuedDevice):
    """A wgpu device with its queue."""

    select_tuning = staticmethod(tuning.select_tuning)
    candidate_tunings = staticmethod(tuning.candidate_tunings)

    def __init__(self, adapter: EnumeratedDevice) -> None:
        super().__init__(adapter.info, request(adapter))
        if adapter.info.type is not DeviceType.SOFTWARE:
            self.timeout *= _PATIENCE
        self._pending = 0
        self._staging = StagingBuffer(self, PART)
        self._readbacks = [StagingBuffer(self, MAX_ASYNC_READ) for _ in range(2)]

    def _converted(self, error: Exception, operation: str) -> GpuError | None:
        return converted(error, operation) if isinstance(error, raised()) else None

    def free_memory(self) -> int:
        """Return -1: WebGPU has no such query."""
        return -1

    def held_bytes(self) -> int:
        """Return the bytes of the staging buffers."""
        return PART + 2 * MAX_ASYNC_READ

    def _alloc(self, nbytes: int, kind: MemoryKind) -> WebGpuBuffer:
        if kind is not MemoryKind.DEVICE:
            raise self._unsupported(f"WebGPU has no {kind.value} memory for kernels", "alloc")
        return self._made(nbytes, "STORAGE|COPY_SRC|COPY_DST")

    def _free(self, buffer: WebGpuBuffer) -> None:
        """Destroy a buffer; commands that are submitted still finish."""
        self.submit()
        self.settle()
        buffer.handle.destroy()

    def _write(self, buffer: WebGpuBuffer, offset: int, source: memoryview) -> None:
        self.submit()
        self.settle()
        self._handle.queue.write_buffer(buffer.handle, offset, source)
        self._pending += len(source)
        if self._pending >= PENDING:
            self.submit(writes=True)
            self._wait()
            self._pending = 0

    def _read(self, buffer: WebGpuBuffer, offset: int, nbytes: int) -> bytes:
        staging = self._staging
        staging.unmap()  # after a read that failed
        self._move(buffer, offset, staging.buffer, 0, words_of(nbytes))
        self._wait()
        staging.map(nbytes)
        self.poll()  # nothing is running, so this maps the buffer
        found = bytearray(nbytes)
        staging.read(memoryview(found))
        return bytes(found)

    def _read_async(self, buffer: WebGpuBuffer, offset: int, nbytes: int) -> Callable[[memoryview], None]:
        staging = self._readbacks.pop(0)
        self._readbacks.append(staging)
        staging.unmap()  # the reader of its last contents may have lost interest
        self._move(buffer, offset, staging.buffer, 0, words_of(nbytes))
        self.submit(then=partial(staging.map, nbytes))

        def ready() -> bool:
            self.poll()
            return staging.ready()

        def read(target: memoryview) -> None:
            self.settle()
            self._until(ready, "async-readback")
            staging.read(target)

        return read

    def _move(self, source: WebGpuBuffer, source_at: int, target: WebGpuBuffer, target_at: int, nbytes: int) -> None:
        """Copy bytes; within one buffer by way of a temporary one, since WebGPU forbids a direct copy."""
        if source is target:
            temporary = self._alloc(nbytes, MemoryKind.DEVICE)
            self._move(source, source_at, temporary, 0, nbytes)
            self._move(temporary, 0, target, target_at, nbytes)
            self._free(temporary)
        else:
            self.encoder().copy_buffer_to_buffer(source.handle, source_at, target.handle, target_at, nbytes)

    def _compile(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> WebGpuKernel:
        text = source(spec, constants, tuning)
        entries = stages((1, 1, 1), tuning)
        layout, pipelines = built(self._handle, self.info.name, spec.name, text, writes(spec, tuning), entries)
        return WebGpuKernel(spec, dict(constants), tuning, layout, pipelines)

    def _close(self) -> None:
        self._submitter.shutdown()
        for staging in (self._staging, *self._readbacks):
            staging.destroy()
        self._handle.destroy()
        self.poll()
