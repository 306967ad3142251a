"""The CPU as a device: host memory, native kernels, one thread pool."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import psutil
from bitnet_hal.errors import OutOfMemoryError
from bitnet_hal.plugin import BaseDevice, BoundLaunch, KernelSpec, LaunchRecording, MemoryKind, Tuning

from bitnet_cpu import _native
from bitnet_cpu.describe import active_kernel, cpu_info
from bitnet_cpu.errors import FAILURES, native, translated
from bitnet_cpu.threads import pool, thread_count
from bitnet_cpu.tuning import candidate_tunings, select_tuning

ASK_FROM = 1 << 20
"""The bytes from which an allocation first queries the free memory, which takes a third of a millisecond."""


@dataclass(eq=False, slots=True)
class CpuBuffer:
    """A range of bytes in host memory."""

    memory: _native.Memory
    nbytes: int
    kind: MemoryKind


@dataclass(frozen=True, slots=True, eq=False)
class CpuKernel:
    """A catalogue kernel of one code path."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    compiled: _native.Compiled


class CpuDevice(BaseDevice[CpuBuffer, CpuKernel]):
    """The CPU, which runs launches synchronously on all threads of a pool.

    kernel: the code path, one of `bitnet_cpu.describe.usable_paths()`; None for BITNET_CPU_KERNEL, else the best.
    threads: None for BITNET_NUM_THREADS, else the physical cores.
    """

    def __init__(self, kernel: str | None = None, threads: int | None = None) -> None:
        self._path = kernel or active_kernel()
        self._pool = pool(threads or thread_count())
        super().__init__(cpu_info(self._path, self._pool.threads))

    def free_memory(self) -> int:
        """Return the bytes of memory that are available to new allocations."""
        return int(psutil.virtual_memory().available)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> CpuBuffer:
        free = self.free_memory() if nbytes >= ASK_FROM else nbytes
        if nbytes > free:
            raise OutOfMemoryError(
                f"cannot allocate {nbytes:,} bytes, {free:,} are free",
                requested=nbytes,
                free=free,
                backend="cpu",
                hint="Use a smaller model or context, or close other programs",
            )
        with native("alloc", nbytes):
            return CpuBuffer(_native.allocate(nbytes), nbytes, kind)

    def _wrap(self, host: memoryview) -> CpuBuffer:
        """Use the host memory in place."""
        with native("wrap"):
            return CpuBuffer(_native.wrap(host), host.nbytes, MemoryKind.SHARED)

    def _free(self, buffer: CpuBuffer) -> None:
        """Release the memory, at once or when the recordings that use it are closed."""
        buffer.memory.release()

    def _upload(self, buffer: CpuBuffer, offset: int, source: memoryview) -> None:
        try:
            buffer.memory.upload(offset, source.nbytes, source)
        except FAILURES as exc:
            raise translated(exc, "upload") from exc

    def _download(self, buffer: CpuBuffer, offset: int, target: memoryview) -> None:
        try:
            buffer.memory.download(offset, target.nbytes, target)
        except FAILURES as exc:
            raise translated(exc, "download") from exc

    def _copy(self, source: CpuBuffer, source_at: int, target: CpuBuffer, target_at: int, nbytes: int) -> None:
        with native("copy"):
            target.memory.copy_from(target_at, source.memory, source_at, nbytes)

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """Return the tiles of one launch; see `bitnet_cpu.tuning`."""
        return select_tuning(spec, params, _native.panel_rows(self._path), self._pool.threads)

    def tunings(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> list[Tuning]:
        """Return the tunings that `bitnet tune` measures; see TunableDevice."""
        return candidate_tunings(spec, params, self.tuning(spec, constants, params))

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> CpuKernel:
        """Look the kernel up in the code path's table."""
        with native("compile"):
            compiled = _native.compile(spec.name, {**constants, **tuning.tile}, self._path)
        return CpuKernel(spec, MappingProxyType(dict(constants)), tuning, compiled)

    def _run(self, launch: BoundLaunch[CpuBuffer, CpuKernel]) -> None:
        with native(launch.kernel.spec.name):
            self._pool.run(self._prepared(launch))

    def _prepared(self, launch: BoundLaunch[CpuBuffer, CpuKernel]) -> _native.Launch:
        parts = [(bound.buffer.memory, bound.offset, bound.nbytes) for bound in launch.bound]
        return _native.make_launch(launch.kernel.compiled, launch.grid, parts, launch.params)

    def _record(self, recording: LaunchRecording[CpuBuffer, CpuKernel]) -> None:
        """Prepare the launches for one native call; they keep the memory of their buffers alive."""
        launches = _native.Launches()
        for launch in recording.launches:
            with native(launch.kernel.spec.name):
                launches.append(self._prepared(launch))
        recording.native = launches

    def _replay_many(self, recording: LaunchRecording[CpuBuffer, CpuKernel], times: int) -> None:
        try:
            self._pool.replay(recording.native, times)
        except FAILURES as exc:
            raise translated(exc, "replay") from exc

    def _forget(self, recording: LaunchRecording[CpuBuffer, CpuKernel]) -> None:
        recording.native.clear()

    def _timings(self, recording: LaunchRecording[CpuBuffer, CpuKernel]) -> list[float]:
        """Time each launch by the host's clock."""
        return [self._timed(launch) for launch in recording.launches]

    def _timed(self, launch: BoundLaunch[CpuBuffer, CpuKernel]) -> float:
        with native(launch.kernel.spec.name):
            prepared = self._prepared(launch)
            began = time.perf_counter()
            self._pool.run(prepared)
            return time.perf_counter() - began

    def _wait(self) -> None:
        """Do nothing: launches are synchronous."""

    def _close(self) -> None:
        """Do nothing: memory is released with its buffers."""
