"""Buffers, and transfers of any number of bytes over an API that knows words of four."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet_core.errors import GpuTimeoutError
from bitnet_core.hal import MemoryKind

from bitnet_webgpu.driver import Handle, ffi, lib, module, raw
from bitnet_webgpu.errors import Stage, checked, converted

if TYPE_CHECKING:
    from bitnet_webgpu.recording import Queue

STAGING = 4 << 20
"""Bytes of the buffer that downloads pass through."""
PENDING = 16 << 20
"""Bytes of uploads that wgpu may hold copies of before they are handed over."""


@dataclass(eq=False, slots=True)
class WebGpuBuffer:
    """A storage buffer with room to the next multiple of 16."""

    handle: Handle
    nbytes: int
    kind: MemoryKind


class Memory:
    """Allocates and moves bytes on one device."""

    def __init__(self, device: Handle, name: str, queue: Queue) -> None:
        self._device, self._name, self._queue = device, name, queue
        usage = module().BufferUsage
        self._usage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        self._pending = 0
        self._staging_usage = usage.COPY_DST | usage.MAP_READ
        self._callbacks: list[Handle] = []  # one that was given up may still be called
        self._stage()

    def _stage(self) -> None:
        """A staging buffer, and the list that its mapping's status comes to."""
        mapped: list[int] = []
        with checked(Stage.MEMORY, self._name, requested=STAGING):
            self._staging, self._mapped = self._device.create_buffer(size=STAGING, usage=self._staging_usage), mapped
        kind = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self._callbacks.append(ffi().callback(kind, lambda status, message, one, two: mapped.append(status)))

    def alloc(self, nbytes: int, kind: MemoryKind) -> WebGpuBuffer:
        """wgpu gives it zeroed."""
        with checked(Stage.MEMORY, self._name, requested=nbytes):
            handle = self._device.create_buffer(size=-(-nbytes // 16) * 16, usage=self._usage)
        return WebGpuBuffer(handle, nbytes, kind)

    def free(self, buffer: WebGpuBuffer) -> None:
        """What is submitted still finishes."""
        self._queue.submit()
        self._queue.poll()
        buffer.handle.destroy()

    def upload(self, buffer: WebGpuBuffer, offset: int, source: memoryview) -> None:
        """Whole words as they are; bytes of a last one together with those that follow them in the buffer."""
        self._queue.submit()
        words = len(source) // 4 * 4
        for start in range(0, words, PENDING):
            self._write(buffer, offset + start, source[start : min(start + PENDING, words)])
        if tail := bytes(source[words:]):
            at = offset + words
            rest = b"" if at + len(tail) == buffer.nbytes else self.read(buffer.handle, at, 4)[len(tail) :]
            self._write(buffer, at, memoryview((tail + rest).ljust(4, b"\0")))

    def _write(self, buffer: WebGpuBuffer, offset: int, source: memoryview) -> None:
        with checked(Stage.TRANSFER, self._name):
            self._device.queue.write_buffer(buffer.handle, offset, source)
        self._pending += len(source)
        if self._pending >= PENDING:
            self._queue.flush_writes()
            self._queue.wait()
            self._pending = 0

    def download(self, buffer: WebGpuBuffer, offset: int, target: memoryview) -> None:
        """Through the staging buffer, a part at a time."""
        for start in range(0, len(target), STAGING):
            size = min(STAGING, len(target) - start)
            self._fetch(buffer.handle, offset + start, size, target[start : start + size])

    def read(self, handle: Handle, offset: int, nbytes: int) -> bytes:
        """At most STAGING bytes."""
        out = bytearray(nbytes)
        self._fetch(handle, offset, nbytes, memoryview(out))
        return bytes(out)

    def _fetch(self, handle: Handle, offset: int, nbytes: int, target: memoryview) -> None:
        words = -(-nbytes // 4) * 4
        with checked(Stage.TRANSFER, self._name):
            self._queue.encoder().copy_buffer_to_buffer(handle, offset, self._staging, 0, words)
        self._queue.submit()
        native, staging = lib(), raw(self._staging)
        self._mapped.clear()
        about = ffi().new("WGPUBufferMapCallbackInfo *")
        about.mode, about.callback = native.WGPUCallbackMode_AllowProcessEvents, self._callbacks[-1]
        native.wgpuBufferMapAsync(staging, native.WGPUMapMode_Read, 0, words, about[0])
        try:
            self._queue.wait(lambda: bool(self._mapped))
        except GpuTimeoutError:
            self._staging.destroy()  # it would stay in the hands of the mapping that was given up
            self._stage()
            raise
        if self._mapped[0] != native.WGPUMapAsyncStatus_Success:
            raise converted(RuntimeError("device was lost: memory cannot be mapped"), Stage.TRANSFER, self._name)
        pointer = native.wgpuBufferGetConstMappedRange(staging, 0, words)
        target[:] = ffi().buffer(pointer, nbytes)
        native.wgpuBufferUnmap(staging)

    def copy(self, source: WebGpuBuffer, source_at: int, target: WebGpuBuffer, target_at: int, nbytes: int) -> None:
        """Whole words on the device, within a buffer through another one; bytes of a last word by the host."""
        words = nbytes // 4 * 4
        if words and source is target:
            between = self.alloc(words, MemoryKind.DEVICE)
            self._copy(source.handle, source_at, between.handle, 0, words)
            self._copy(between.handle, 0, target.handle, target_at, words)
            self.free(between)
        elif words:
            self._copy(source.handle, source_at, target.handle, target_at, words)
        if nbytes > words:
            tail = bytearray(nbytes - words)
            self.download(source, source_at + words, memoryview(tail))
            self.upload(target, target_at + words, memoryview(tail))

    def _copy(self, source: Handle, source_at: int, target: Handle, target_at: int, nbytes: int) -> None:
        with checked(Stage.TRANSFER, self._name):
            self._queue.encoder().copy_buffer_to_buffer(source, source_at, target, target_at, nbytes)

    def close(self) -> None:
        """Free the staging buffer."""
        self._staging.destroy()
