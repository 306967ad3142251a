"""A Metal device."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_core.errors import DeviceNotFoundError
from bitnet_core.hal import MemoryKind, Tuning
from bitnet_core.kernels.spec import KernelSpec

from bitnet_metal.compile import Compiler, MetalKernel
from bitnet_metal.describe import usable
from bitnet_metal.driver import BACKEND, module, pool
from bitnet_metal.errors import no_room
from bitnet_metal.memory import SMALL, MetalBuffer, wrap
from bitnet_metal.recording import QueuedDevice
from bitnet_metal.tuning import FAMILIES, choose

PART = 4 << 20  # bytes that go into or out of a private buffer at a time, through shared memory


class MetalDevice(QueuedDevice):
    """One GPU of Apple silicon."""

    def __init__(self, index: int) -> None:
        found = {info.index: (info, handle) for handle, info in usable()}
        if index not in found:
            raise DeviceNotFoundError(f"there is no device metal:{index}", backend=BACKEND, operation="open")
        info, handle = found[index]
        super().__init__(info, handle, touch=bool(FAMILIES[str(info.extra["family"])]["touch"]))
        self.compiler = Compiler(handle)

    def free_memory(self) -> int:
        """What is left of the working set that macOS recommends."""
        return max(0, int(self._handle.recommendedMaxWorkingSetSize()) - int(self._handle.currentAllocatedSize()))

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """See `bitnet_metal.tuning`."""
        return choose(spec, constants, params, self.info)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> MetalBuffer:
        made = self._new(nbytes, kind)
        if not made.host:
            self.encoder(computes=False).fillBuffer_range_value_(made.handle, (0, -(-nbytes // 16) * 16), 0)
        return made

    def _new(self, nbytes: int, kind: MemoryKind) -> MetalBuffer:
        """Zeroed if it is shared. OutOfMemoryError beyond the working set: macOS would begin to move memory about."""
        shared, handle = kind is not MemoryKind.DEVICE or nbytes <= SMALL, None
        mode = getattr(module(), f"MTLResourceStorageMode{'Shared' if shared else 'Private'}")
        if nbytes <= (free := self.free_memory()):
            with pool():
                handle = self._handle.newBufferWithLength_options_(-(-nbytes // 16) * 16, mode)
        if handle is None:
            raise no_room(nbytes, free)
        data = handle.contents().as_buffer(nbytes) if shared else b""
        return MetalBuffer(handle, nbytes, kind, memoryview(data).cast("B"))

    def _wrap(self, host: memoryview) -> MetalBuffer | None:
        return wrap(self._handle, host)

    def _free(self, buffer: MetalBuffer) -> None:
        if buffer.wrapped:
            self._wait()  # its memory may go away now; Metal keeps all others until commands are done with them
        buffer.handle, buffer.host = None, memoryview(b"")

    def _upload(self, buffer: MetalBuffer, offset: int, source: memoryview) -> None:
        if buffer.host:
            self._wait()
            buffer.host[offset : offset + len(source)] = source
            return
        if rest := len(source) % 4:  # copies are of whole words
            last = bytearray(4)
            self._download(buffer, offset + len(source) - rest, memoryview(last))
            source = memoryview(bytes(source) + last[rest:])
        for start in range(0, len(source), PART):
            part = source[start : start + PART]
            staged = self._new(len(part), MemoryKind.HOST)
            staged.host[:] = part
            self.move(staged.handle, 0, buffer.handle, offset + start, len(part))
            self.submit()

    def _download(self, buffer: MetalBuffer, offset: int, target: memoryview) -> None:
        if buffer.host:
            self._wait()
            target[:] = buffer.host[offset : offset + len(target)]
            return
        for start in range(0, len(target), PART):
            part = target[start : start + PART]
            staged = self._new(len(part), MemoryKind.HOST)
            self.move(buffer.handle, offset + start, staged.handle, 0, -(-len(part) // 4) * 4)
            self._download(staged, 0, part)

    def _copy(self, source: MetalBuffer, source_at: int, target: MetalBuffer, target_at: int, nbytes: int) -> None:
        words = nbytes // 4 * 4
        if words:
            self.move(source.handle, source.offset + source_at, target.handle, target.offset + target_at, words)
        if words < nbytes:
            last = memoryview(bytearray(nbytes - words))
            self._download(source, source_at + words, last)
            self._upload(target, target_at + words, last)

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> MetalKernel:
        return self.compiler.kernel(spec, constants, tuning)
