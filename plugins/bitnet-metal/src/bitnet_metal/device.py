"""A Metal device."""

from __future__ import annotations

from bitnet_hal.plugin import Constants, EnumeratedDevice, KernelSpec, MemoryKind, Params, Tuning, TuningQuery, words_of

from bitnet_metal.compile import Compiler, MetalKernel
from bitnet_metal.driver import module, pool
from bitnet_metal.errors import no_room
from bitnet_metal.memory import SMALL, MetalBuffer, wrap
from bitnet_metal.recording import QueuedDevice
from bitnet_metal.tuning import FAMILIES, select_tuning


class MetalDevice(QueuedDevice):
    """One GPU of Apple silicon."""

    def __init__(self, device: EnumeratedDevice) -> None:
        handle, info = device
        super().__init__(info, handle, touch=bool(FAMILIES[str(info.extra["family"])]["touch"]))
        self.compiler = Compiler(handle)

    def free_memory(self) -> int:
        """What is left of the working set that macOS recommends."""
        return max(0, int(self._handle.recommendedMaxWorkingSetSize()) - int(self._handle.currentAllocatedSize()))

    def tuning(self, spec: KernelSpec, constants: Constants, params: Params) -> Tuning:
        """See `bitnet_metal.tuning`."""
        return select_tuning(TuningQuery(spec, constants, params, self.info))

    def _alloc(self, nbytes: int, kind: MemoryKind) -> MetalBuffer:
        made = self._new(nbytes, kind)
        if not made.host:
            self.encoder(computes=False).fillBuffer_range_value_(made.handle, (0, words_of(nbytes, 16)), 0)
        return made

    def _new(self, nbytes: int, kind: MemoryKind) -> MetalBuffer:
        """Zeroed if it is shared. OutOfMemoryError beyond the working set: macOS would begin to move memory about."""
        shared, handle = kind is not MemoryKind.DEVICE or nbytes <= SMALL, None
        mode = getattr(module(), f"MTLResourceStorageMode{'Shared' if shared else 'Private'}")
        if nbytes <= (free := self.free_memory()):
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
            self._wait()  # its memory may go away now; Metal keeps all others until commands are done with them
        buffer.handle, buffer.host = None, memoryview(b"")

    def _upload(self, buffer: MetalBuffer, offset: int, source: memoryview) -> None:
        if not buffer.host:
            super()._upload(buffer, offset, source)
            return
        self._wait()
        buffer.host[offset : offset + len(source)] = source

    def _write(self, buffer: MetalBuffer, offset: int, source: memoryview) -> None:
        """Into a private buffer, through shared memory."""
        staged = self._new(len(source), MemoryKind.HOST)
        staged.host[:] = source
        self._move(staged, 0, buffer, offset, len(source))
        self.submit()

    def _read(self, buffer: MetalBuffer, offset: int, nbytes: int) -> bytes:
        if not buffer.host:
            staged = self._new(nbytes, MemoryKind.HOST)
            self._move(buffer, offset, staged, 0, words_of(nbytes))
            buffer, offset = staged, 0
        self._wait()
        return bytes(buffer.host[offset : offset + nbytes])

    def _compile(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> MetalKernel:
        return self.compiler.kernel(spec, constants, tuning)
