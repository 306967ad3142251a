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


def words_of(nbytes: int, word: int) -> int:
    """Bytes of the words that hold so many bytes."""
    return -(-nbytes // word) * word


@dataclass(eq=False, slots=True)
class WebGpuBuffer:
    """A storage buffer with room to the next multiple of 16."""

    handle: Handle
    nbytes: int
    kind: MemoryKind = MemoryKind.DEVICE


class Memory:
    """Allocates and moves bytes on one device."""

    def __init__(self, device: Handle, name: str, queue: Queue) -> None:
        self._device, self._name, self._queue, self._pending = device, name, queue, 0
        usage = module().BufferUsage
        self._storage, self._read = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST, usage.COPY_DST | usage.MAP_READ
        self._callbacks: list[Handle] = []  # one that was given up may still be called
        self._stage()

    def _create(self, nbytes: int, usage: int) -> Handle:
        with checked(Stage.MEMORY, self._name, requested=nbytes):
            return self._device.create_buffer(size=words_of(nbytes, 16), usage=usage)

    def _stage(self) -> None:
        """A staging buffer, and the list that its mapping's status comes to."""
        mapped: list[int] = []
        self._staging, self._mapped = self._create(STAGING, self._read), mapped
        kind = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self._callbacks.append(ffi().callback(kind, lambda status, message, one, two: mapped.append(status)))

    def alloc(self, nbytes: int) -> WebGpuBuffer:
        """wgpu gives it zeroed."""
        return WebGpuBuffer(self._create(nbytes, self._storage), nbytes)

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
            rest = self.read(buffer.handle, offset + words, 4)[len(tail) :]
            self._write(buffer, offset + words, memoryview(tail + rest))

    def _write(self, buffer: WebGpuBuffer, offset: int, source: memoryview) -> None:
        with checked(Stage.TRANSFER, self._name):
            self._device.queue.write_buffer(buffer.handle, offset, source)
        self._pending += len(source)
        if self._pending >= PENDING:
            self._queue.submit(writes=True)
            self._queue.wait()
            self._pending = 0

    def download(self, buffer: WebGpuBuffer, offset: int, target: memoryview) -> None:
        """A part of STAGING bytes at a time."""
        for start in range(0, len(target), STAGING):
            size = min(STAGING, len(target) - start)
            target[start : start + size] = self.read(buffer.handle, offset + start, size)

    def read(self, handle: Handle, offset: int, nbytes: int) -> bytes:
        """At most STAGING bytes, through the staging buffer."""
        words = words_of(nbytes, 4)
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
        found = bytes(ffi().buffer(native.wgpuBufferGetConstMappedRange(staging, 0, words), nbytes))
        native.wgpuBufferUnmap(staging)
        return found

    def copy(self, source: WebGpuBuffer, source_at: int, target: WebGpuBuffer, target_at: int, nbytes: int) -> None:
        """Whole words on the device, within a buffer through another one; bytes of a last word by the host."""
        words = nbytes // 4 * 4
        if words and source is target:
            between = self.alloc(words)
            self._copy(source, source_at, between, 0, words)
            self._copy(between, 0, target, target_at, words)
            self.free(between)
        elif words:
            self._copy(source, source_at, target, target_at, words)
        if nbytes > words:
            tail = self.read(source.handle, source_at + words, nbytes - words)
            self.upload(target, target_at + words, memoryview(tail))

    def _copy(self, source: WebGpuBuffer, source_at: int, target: WebGpuBuffer, target_at: int, nbytes: int) -> None:
        with checked(Stage.TRANSFER, self._name):
            self._queue.encoder().copy_buffer_to_buffer(source.handle, source_at, target.handle, target_at, nbytes)

    def close(self) -> None:
        """Free the staging buffer."""
        self._staging.destroy()
