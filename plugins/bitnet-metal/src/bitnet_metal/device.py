"""A Metal device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitnet_core.hal import MemoryKind, Tuning
from bitnet_core.hal.base import BaseDevice, Launch, Recorded
from bitnet_core.kernels.spec import KernelSpec

from bitnet_metal.compile import Compiler, MetalKernel
from bitnet_metal.describe import find
from bitnet_metal.memory import SLOT, SLOTS, Memory, MetalBuffer
from bitnet_metal.recording import Queue, indirect
from bitnet_metal.tuning import FAMILIES, choose


class MetalDevice(BaseDevice[MetalBuffer, MetalKernel]):
    """One GPU with its queue. A recording is an indirect command buffer; where Metal makes none, it is encoded anew."""

    def __init__(self, index: int) -> None:
        self._handle, info = find(index)
        super().__init__(info)
        touch = FAMILIES[str(info.extra["family"])].touch
        self.queue = Queue(self._handle, info.name, lambda: self.timeout, touch=touch)
        self.memory = Memory(self._handle, info.name, self.queue)
        self.compiler = Compiler(self._handle, info.name)

    def free_memory(self) -> int:
        """What is left of the working set that macOS recommends."""
        return self.memory.free_bytes()

    def held_bytes(self) -> int:
        """The slots through which private buffers are reached."""
        return SLOT * SLOTS

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """See `bitnet_metal.tuning`."""
        return choose(spec, constants, params, self.info)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> MetalBuffer:
        return self.memory.alloc(nbytes, kind)

    def _wrap(self, host: memoryview) -> MetalBuffer | None:
        return self.memory.wrap(host)

    def _free(self, buffer: MetalBuffer) -> None:
        if buffer.wrapped:
            self._wait()  # its memory may go away now; Metal keeps all others until commands are done with them
        buffer.handle = buffer.host = None

    def _upload(self, buffer: MetalBuffer, offset: int, source: memoryview) -> None:
        self.memory.upload(buffer, offset, source)

    def _download(self, buffer: MetalBuffer, offset: int, target: memoryview) -> None:
        self.memory.download(buffer, offset, target)

    def _copy(self, source: MetalBuffer, source_at: int, target: MetalBuffer, target_at: int, nbytes: int) -> None:
        self.memory.copy(source, source_at, target, target_at, nbytes)

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> MetalKernel:
        return self.compiler.kernel(spec, constants, tuning)

    def _run(self, launch: Launch[MetalBuffer, MetalKernel]) -> None:
        self.queue.put(launch)

    def _record(self, recording: Recorded[MetalBuffer, MetalKernel]) -> None:
        recording.native = indirect(self._handle, recording.launches)

    def _replay(self, recording: Recorded[MetalBuffer, MetalKernel]) -> None:
        if recording.native is None:
            super()._replay(recording)
        else:
            self.queue.replay(recording.native)

    def _timings(self, recording: Recorded[MetalBuffer, MetalKernel]) -> Sequence[float]:
        return self.queue.timed(recording.launches)

    def _forget(self, recording: Recorded[MetalBuffer, MetalKernel]) -> None:
        self._wait()  # a command buffer does not keep the commands that it executes

    def _wait(self) -> None:
        self.memory.wait()

    def _close(self) -> None:
        self.queue.submit()
