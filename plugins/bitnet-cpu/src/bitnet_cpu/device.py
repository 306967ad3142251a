"""The CPU as a HAL device: host memory, native kernels, one thread pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

import psutil
from bitnet_core.errors import OutOfMemoryError, UnsupportedError
from bitnet_core.hal.checks import check_launch
from bitnet_core.hal.device import Buffer, Grid, Kernel, MemoryKind, Recording, View
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.kernels.spec import KernelSpec

from bitnet_cpu import _native
from bitnet_cpu.errors import native
from bitnet_cpu.info import active_kernel, cpu_info
from bitnet_cpu.small_head import SmallHeads, Step
from bitnet_cpu.threads import pool, thread_count
from bitnet_cpu.tuning import tile_sizes

ASK_FROM = 1 << 20
"""Bytes from which an allocation first asks how much memory is free, which takes a third of a millisecond."""


@dataclass(eq=False, slots=True)
class CpuBuffer:
    """Bytes in host memory."""

    memory: _native.Memory
    nbytes: int
    kind: MemoryKind
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class CpuKernel:
    """One catalogue kernel of one code path."""

    spec: KernelSpec
    constants: Mapping[str, int]
    compiled: _native.Compiled


@dataclass(eq=False, slots=True)
class CpuRecording:
    """Launches that one native call runs; they keep their buffers' memory alive."""

    launches: _native.Launches = field(default_factory=_native.Launches)
    steps: list[Step] = field(default_factory=list)  # only while it is recorded
    saved_reads: int = 0

    def close(self) -> None:
        """Forget the launches."""
        self.launches.clear()


class CpuDevice:
    """Runs every launch at once, on all threads of the pool.

    kernel: code path, one of `bitnet_cpu.info.usable_paths()`; None = BITNET_CPU_KERNEL, else the best.
    threads: None = BITNET_NUM_THREADS, else the physical cores.
    """

    def __init__(self, kernel: str | None = None, threads: int | None = None) -> None:
        self._path = kernel or active_kernel()
        self._pool = pool(threads or thread_count())
        self.info = cpu_info(self._path, self._pool.threads)
        self._buffers: set[CpuBuffer] = set()
        self._recording: CpuRecording | None = None
        self._small_heads = SmallHeads(self._pool)

    def free_memory(self) -> int:
        """Bytes the operating system could still give."""
        return int(psutil.virtual_memory().available)

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> CpuBuffer:
        """Zero-filled host memory, whatever the kind."""
        if nbytes <= 0:
            raise ValueError(f"a buffer needs at least one byte, not {nbytes}")
        free = self.free_memory() if nbytes >= ASK_FROM else nbytes
        if nbytes > free:
            raise OutOfMemoryError(
                f"cannot allocate {nbytes:,} bytes, {free:,} are free",
                requested=nbytes,
                free=free,
                backend="cpu",
                hint="Use a smaller context or close other programs",
            )
        with native("alloc", nbytes):
            return self._keep(CpuBuffer(_native.allocate(nbytes), nbytes, kind))

    def _keep(self, buffer: CpuBuffer) -> CpuBuffer:
        self._buffers.add(buffer)
        return buffer

    def wrap(self, host: memoryview) -> CpuBuffer | None:
        """The memory itself."""
        with native("wrap"):
            return self._keep(CpuBuffer(_native.wrap(host), host.nbytes, MemoryKind.SHARED, wrapped=True))

    def free(self, buffer: Buffer) -> None:
        """Drop the memory, at once or when the recordings that use it are closed."""
        own = self._own(buffer)
        self._buffers.remove(own)
        self._small_heads.forget(own)
        own.memory.release()

    def _own(self, buffer: Buffer) -> CpuBuffer:
        if not isinstance(buffer, CpuBuffer) or buffer not in self._buffers:
            raise ValueError("this buffer is not, or no longer, one of this device")
        return buffer

    def upload(self, dst: View, src: memoryview) -> None:
        """Copy in."""
        with native("upload"):
            self._own(dst.buffer).memory.upload(dst.offset, dst.nbytes, src)

    def download(self, src: View, dst: memoryview) -> None:
        """Copy out."""
        with native("download"):
            self._own(src.buffer).memory.download(src.offset, src.nbytes, dst)

    def copy(self, src: View, dst: View) -> None:
        """Copy within the device."""
        if src.nbytes != dst.nbytes:
            raise ValueError(f"copy of {src.nbytes} bytes into a view of {dst.nbytes}")
        with native("copy"):
            self._own(dst.buffer).memory.copy_from(dst.offset, self._own(src.buffer).memory, src.offset, src.nbytes)

    def tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> dict[str, int]:
        """Tiles for one launch; see `bitnet_cpu.tuning`."""
        return tile_sizes(spec, params, _native.panel_rows(self._path), self._pool.threads)

    def compile(self, spec: KernelSpec, constants: Mapping[str, int]) -> CpuKernel:
        """Look the kernel up in the code path's table."""
        if CATALOGUE.get(spec.name) is not spec:
            raise UnsupportedError(f"{spec.name} is not a catalogue kernel", backend="cpu", operation="compile")
        spec.check_constants(constants)
        with native("compile"):
            compiled = _native.compile(spec.name, dict(constants), self._path)
        return CpuKernel(spec, MappingProxyType(dict(constants)), compiled)

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """Run now, or keep for replay while recording."""
        if not isinstance(kernel, CpuKernel):
            raise ValueError("this kernel is not one of this device")
        spec = kernel.spec
        check_launch(spec, views, params, self.info, kernel.constants)
        parts = [(self._own(view.buffer).memory, view.offset, view.nbytes) for view in views]
        with native(spec.name):
            launch = _native.make_launch(kernel.compiled, grid, parts, params)
            if self._recording is None:
                self._pool.run(launch)
            else:
                step = Step(launch, spec, dict(kernel.constants), tuple(views), spec.unpack(params))
                self._recording.steps.append(step)

    @contextmanager
    def record(self) -> Iterator[CpuRecording]:
        """Keep the launches of the block."""
        if self._recording is not None:
            raise ValueError("a recording is already under way")
        self._recording = recording = CpuRecording()
        try:
            yield recording
            wrapped: set[object] = {buffer for buffer in self._buffers if buffer.wrapped}
            recording.saved_reads = self._small_heads.record(recording.steps, recording.launches, wrapped)
        finally:
            recording.steps.clear()
            self._recording = None

    def replay(self, recording: Recording) -> None:
        """Run the kept launches in one native call."""
        if not isinstance(recording, CpuRecording):
            raise ValueError("this recording is not one of this device")
        with native("replay"):
            self._pool.replay(recording.launches)

    def saved_reads(self, recording: Recording) -> int:
        """What small heads save; the few rows that are computed again from f16 count as saved."""
        if not isinstance(recording, CpuRecording):
            raise ValueError("this recording is not one of this device")
        return recording.saved_reads

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def close(self) -> None:
        """Free every buffer."""
        for buffer in self._buffers:
            self._small_heads.forget(buffer)
            buffer.memory.release()
        self._buffers.clear()
