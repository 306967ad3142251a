"""A Metal device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitnet_core.hal import MemoryKind, Tuning
from bitnet_core.hal.base import BaseDevice, Launch, Recorded
from bitnet_core.kernels.spec import KernelSpec

from bitnet_metal.compile import Compiler, MetalKernel
from bitnet_metal.describe import find
from bitnet_metal.memory import Memory, MetalBuffer
from bitnet_metal.recording import Queue, indirect
from bitnet_metal.tuning import choose, family_of

PART = 4 << 20
"""Bytes that go into or out of a private buffer at a time, through shared memory."""


class MetalDevice(BaseDevice[MetalBuffer, MetalKernel]):
    """One GPU with its queue. A recording is an indirect command buffer; where Metal makes none, it is encoded anew."""

    def __init__(self, index: int) -> None:
        self._handle, info = find(index)
        super().__init__(info)
        self.queue = Queue(self._handle, info.name, lambda: self.timeout, touch=bool(family_of(info)["touch"]))
        self.memory = Memory(self._handle, info.name)
        self.compiler = Compiler(self._handle, info.name)

    def free_memory(self) -> int:
        """What is left of the working set that macOS recommends."""
        return self.memory.free_bytes()

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """See `bitnet_metal.tuning`."""
        return choose(spec, constants, params, self.info)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> MetalBuffer:
        made = self.memory.new(nbytes, kind)
        if made.host is None:
            self.queue.blit().fillBuffer_range_value_(made.handle, (0, -(-nbytes // 16) * 16), 0)
        return made

    def _wrap(self, host: memoryview) -> MetalBuffer | None:
        return self.memory.wrap(host)

    def _free(self, buffer: MetalBuffer) -> None:
        if buffer.wrapped:
            self._wait()  # its memory may go away now; Metal keeps all others until commands are done with them
        buffer.handle = buffer.host = None

    def _upload(self, buffer: MetalBuffer, offset: int, source: memoryview) -> None:
        if buffer.host is not None:
            self._wait()
            buffer.host[offset : offset + len(source)] = source
            return
        if rest := len(source) % 4:  # copies are of whole words
            last = bytearray(4)
            self._download(buffer, offset + len(source) - rest, memoryview(last))
            source = memoryview(bytes(source) + last[rest:])
        for start in range(0, len(source), PART):
            part = source[start : start + PART]
            staged = self.memory.new(len(part), MemoryKind.HOST)
            self._upload(staged, 0, part)
            self.queue.move(staged.handle, 0, buffer.handle, offset + start, len(part))
            self.queue.submit()

    def _download(self, buffer: MetalBuffer, offset: int, target: memoryview) -> None:
        if buffer.host is not None:
            self._wait()
            target[:] = buffer.host[offset : offset + len(target)]
            return
        for start in range(0, len(target), PART):
            part = target[start : start + PART]
            staged = self.memory.new(len(part), MemoryKind.HOST)
            self.queue.move(buffer.handle, offset + start, staged.handle, 0, -(-len(part) // 4) * 4)
            self._download(staged, 0, part)

    def _copy(self, source: MetalBuffer, source_at: int, target: MetalBuffer, target_at: int, nbytes: int) -> None:
        words = nbytes // 4 * 4
        if words:
            self.queue.move(source.handle, source.offset + source_at, target.handle, target.offset + target_at, words)
        if words < nbytes:
            last = memoryview(bytearray(nbytes - words))
            self._download(source, source_at + words, last)
            self._upload(target, target_at + words, last)

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
        self.queue.wait()

    def _close(self) -> None:
        self.queue.submit()  # ends an encoder that is open
