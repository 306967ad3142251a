"""The Metal device: memory, transfers and compilation."""

from __future__ import annotations

from bitnet_hal.plugin import Constants, EnumeratedDevice, KernelSpec, MemoryKind, Tuning, TuningMixin, words_of

from bitnet_metal.compile import Compiler, MetalKernel
from bitnet_metal.driver import module, pool
from bitnet_metal.errors import no_room
from bitnet_metal.memory import SMALL, MetalBuffer, wrap
from bitnet_metal.recording import QueuedDevice
from bitnet_metal.tuning import FAMILIES, candidate_tunings, select_tuning


class MetalDevice(TuningMixin, QueuedDevice):
    """A GPU of Apple silicon."""

    select_tuning = staticmethod(select_tuning)
    candidate_tunings = staticmethod(candidate_tunings)

    def __init__(self, device: EnumeratedDevice) -> None:
        handle, info = device
        super().__init__(info, handle, touch=bool(FAMILIES[str(info.extra["family"])]["touch"]))
        self.compiler = Compiler(handle)

    def free_memory(self) -> int:
        """Return the free bytes of the working set that macOS recommends."""
        return max(0, int(self._handle.recommendedMaxWorkingSetSize()) - int(self._handle.currentAllocatedSize()))

    def _alloc(self, nbytes: int, kind: MemoryKind) -> MetalBuffer:
        made = self._new(nbytes, kind)
        if not made.host:
            self.encoder(computes=False).fillBuffer_range_value_(made.handle, (0, words_of(nbytes, 16)), 0)
        return made

    def _new(self, nbytes: int, kind: MemoryKind) -> MetalBuffer:
        """Allocate a buffer, zeroed if it is shared.

        Raises OutOfMemoryError beyond the recommended working set, because macOS would start to swap.
        """
        shared = kind is not MemoryKind.DEVICE or nbytes <= SMALL
        mode = module().MTLResourceStorageModeShared if shared else module().MTLResourceStorageModePrivate
        handle = None
        free = self.free_memory()
        if nbytes <= free:
            with pool():
                handle = self._handle.newBufferWithLength_options_(words_of(nbytes, 16), mode)
        if handle is None:
            raise no_room(nbytes, free)
        data = handle.contents().as_buffer(nbytes) if shared else b""
        return MetalBuffer(handle, nbytes, kind, memoryview(data).cast("B"))

    def _wrap(self, host: memoryview) -> MetalBuffer | None:
        return wrap(self._handle, host)

    def _free(self, buffer: MetalBuffer) -> None:
        if buffer.wrapped:
            self._wait()  # the caller may now release its memory; Metal keeps other buffers until commands finish
        buffer.handle = None
        buffer.host = memoryview(b"")

    def _upload(self, buffer: MetalBuffer, offset: int, source: memoryview) -> None:
        if not buffer.host:
            super()._upload(buffer, offset, source)
            return
        self._wait()
        buffer.host[offset : offset + len(source)] = source

    def _write(self, buffer: MetalBuffer, offset: int, source: memoryview) -> None:
        """Write to a private buffer through a shared one."""
        staged = self._new(len(source), MemoryKind.HOST)
        staged.host[:] = source
        self._move(staged, 0, buffer, offset, len(source))
        self.submit()

    def _read(self, buffer: MetalBuffer, offset: int, nbytes: int) -> bytes:
        if not buffer.host:
            staged = self._new(nbytes, MemoryKind.HOST)
            self._move(buffer, offset, staged, 0, words_of(nbytes))
            buffer = staged
            offset = 0
        self._wait()
        return bytes(buffer.host[offset : offset + nbytes])

    def _compile(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> MetalKernel:
        return self.compiler.kernel(spec, constants, tuning)
