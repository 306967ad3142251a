"""A WebGPU device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitnet_core.hal import MemoryKind, Tuning
from bitnet_core.hal.base import BaseDevice, Launch, Recorded
from bitnet_core.kernels.spec import KernelSpec

from bitnet_webgpu.compile import Compiler, WebGpuKernel
from bitnet_webgpu.describe import find, request
from bitnet_webgpu.memory import STAGING, Memory, WebGpuBuffer
from bitnet_webgpu.recording import Binder, Queue
from bitnet_webgpu.tuning import choose, offered

_PATIENCE = 12
"""A wait may take this many times as long as elsewhere: drivers compile a pipeline when it is first dispatched, within
the wait (seen to pass 5 s on an H200), and software devices are slow."""


class WebGpuDevice(BaseDevice[WebGpuBuffer, WebGpuKernel]):
    """One device of wgpu with its queue. A recording is a list of prepared dispatches, encoded anew for each replay."""

    def __init__(self, index: int) -> None:
        adapter, info = find(index)
        super().__init__(info)
        self.timeout *= _PATIENCE
        self._handle = request(adapter, info)
        self.queue = Queue(self._handle, info.name, self._until)
        self.memory = Memory(self._handle, info.name, self.queue)
        self.compiler = Compiler(self._handle, info.name)
        self.binder = Binder(self._handle, info.name)

    def free_memory(self) -> int:
        """WebGPU does not tell."""
        return -1

    def held_bytes(self) -> int:
        """The staging buffer of downloads."""
        return STAGING

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """See `bitnet_webgpu.tuning`."""
        return choose(spec, constants, params, self.info)

    def tunings(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> Sequence[Tuning]:
        """For `bitnet tune`."""
        return offered(spec, constants, params, self.info)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> WebGpuBuffer:
        if kind is not MemoryKind.DEVICE:
            raise self._unsupported(f"WebGPU has no {kind.value} memory for kernels", "alloc")
        return self.memory.alloc(nbytes)

    def _free(self, buffer: WebGpuBuffer) -> None:
        self.memory.free(buffer)

    def _upload(self, buffer: WebGpuBuffer, offset: int, source: memoryview) -> None:
        self.memory.upload(buffer, offset, source)

    def _download(self, buffer: WebGpuBuffer, offset: int, target: memoryview) -> None:
        self.memory.download(buffer, offset, target)

    def _copy(self, source: WebGpuBuffer, source_at: int, target: WebGpuBuffer, target_at: int, nbytes: int) -> None:
        self.memory.copy(source, source_at, target, target_at, nbytes)

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> WebGpuKernel:
        return self.compiler.kernel(spec, constants, tuning)

    def _run(self, launch: Launch[WebGpuBuffer, WebGpuKernel]) -> None:
        self.queue.put(self.binder.prepare(launch))

    def _record(self, recording: Recorded[WebGpuBuffer, WebGpuKernel]) -> None:
        recording.native = [one for launch in recording.launches for one in self.binder.prepare(launch)]

    def _replay(self, recording: Recorded[WebGpuBuffer, WebGpuKernel]) -> None:
        self.queue.put(recording.native)

    def _timings(self, recording: Recorded[WebGpuBuffer, WebGpuKernel]) -> Sequence[float]:
        return self.queue.timed([self.binder.prepare(launch) for launch in recording.launches], self.memory.read)

    def _wait(self) -> None:
        self.queue.wait()

    def _close(self) -> None:
        self.memory.close()
        self._handle.destroy()
        self.queue.poll()
