"""The toy device: host memory, and one Python call per workgroup."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

import numba
import numpy as np
import numpy.typing as npt
import psutil
from bitnet_core.errors import UnsupportedError
from bitnet_core.hal.checks import check_launch
from bitnet_core.hal.device import Buffer, DeviceInfo, DeviceType, Grid, Kernel, MemoryKind, Recording, View
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.kernels.spec import KernelSpec

from bitnet_toy.compiler import ToyKernel, build, find
from bitnet_toy.errors import check

ALIGNMENT = 16
DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}
TILES = {"TILE_N": 64, "TILE_T": 1}
"""Tuning constants: outputs and rows of one workgroup."""


# --8<-- [start:info]
def device_info() -> DeviceInfo:
    """What the host is."""
    total = psutil.virtual_memory().total
    return DeviceInfo(
        backend="toy",
        index=0,
        name="the host, through numba",
        type=DeviceType.SOFTWARE,
        driver=f"numba {numba.__version__}",
        total_memory=total,
        max_allocation=total,
        max_binding=total,
        alignment=ALIGNMENT,
        features=frozenset({"timings"}),
    )


# --8<-- [end:info]


@dataclass(eq=False)
class ToyBuffer:
    """Bytes; None once freed."""

    data: npt.NDArray[np.uint8] | None
    nbytes: int
    kind: MemoryKind


@dataclass(eq=False)
class ToyRecording:
    """(kernel name, launch) of every launch kept."""

    launches: list[tuple[str, Callable[[], None]]] = field(default_factory=list)

    def close(self) -> None:
        """Forget the launches."""
        self.launches.clear()


class ToyDevice:
    """The HAL, method by method, in the order of the protocol."""

    def __init__(self) -> None:
        self.info = device_info()
        self._buffers: set[ToyBuffer] = set()
        self._built: dict[str, Callable[..., None]] = {}
        self._recording: ToyRecording | None = None

    def free_memory(self) -> int:
        """Bytes that the operating system could still give."""
        return int(psutil.virtual_memory().available)

    # --8<-- [start:memory]
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> ToyBuffer:
        """Zero-filled host memory, whatever the kind."""
        if nbytes <= 0:
            raise ValueError(f"a buffer needs at least one byte, not {nbytes}")
        with check("alloc", requested=nbytes, free=self.free_memory()):
            buffer = ToyBuffer(np.zeros(nbytes, dtype=np.uint8), nbytes, kind)
        self._buffers.add(buffer)
        return buffer

    def wrap(self, host: memoryview) -> ToyBuffer | None:
        """Never: numba compiles kernels for writable arrays, and mapped files are read-only."""
        return None

    def free(self, buffer: Buffer) -> None:
        """Drop the memory."""
        mine = self._mine(buffer)
        self._buffers.remove(mine)
        mine.data = None

    def _mine(self, buffer: Buffer) -> ToyBuffer:
        if not isinstance(buffer, ToyBuffer) or buffer not in self._buffers:
            raise ValueError("this buffer is not, or no longer, one of this device")
        return buffer

    # --8<-- [end:memory]
    # --8<-- [start:transfers]
    def _bytes(self, view: View) -> npt.NDArray[np.uint8]:
        data = self._mine(view.buffer).data
        if data is None:
            raise ValueError("the device is closed")
        return data[view.offset : view.offset + view.nbytes]

    def upload(self, dst: View, src: memoryview) -> None:
        """Copy in."""
        if src.nbytes != dst.nbytes:
            raise ValueError(f"upload of {src.nbytes} bytes into a view of {dst.nbytes}")
        self._bytes(dst)[:] = np.frombuffer(src, dtype=np.uint8)

    def download(self, src: View, dst: memoryview) -> None:
        """Copy out."""
        if src.nbytes != dst.nbytes:
            raise ValueError(f"download of a view of {src.nbytes} bytes into {dst.nbytes}")
        np.frombuffer(dst, dtype=np.uint8)[:] = self._bytes(src)

    def copy(self, src: View, dst: View) -> None:
        """Copy within the device."""
        if src.nbytes != dst.nbytes:
            raise ValueError(f"copy of {src.nbytes} bytes into a view of {dst.nbytes}")
        self._bytes(dst)[:] = self._bytes(src)

    # --8<-- [end:transfers]
    # --8<-- [start:kernels]
    def tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> dict[str, int]:
        """The same tiles for everything."""
        return {name: TILES[name] for name in spec.tuning}

    def compile(self, spec: KernelSpec, constants: Mapping[str, int]) -> ToyKernel:
        """Machine code is made once per kernel; constants are arguments of it."""
        if CATALOGUE.get(spec.name) is not spec or not spec.base:
            raise UnsupportedError(f"{spec.name} is not offered", backend="toy", operation="compile")
        spec.check_constants(constants)
        if spec.name not in self._built:
            self._built[spec.name] = build(find(spec.name), spec)
        return ToyKernel(spec, MappingProxyType(dict(constants)), self._built[spec.name])

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """Run every workgroup now, or keep them for replay."""
        if not isinstance(kernel, ToyKernel):
            raise ValueError("this kernel is not one of this device")
        spec = kernel.spec
        check_launch(spec, views, params, self.info, kernel.constants)
        operands = [self._bytes(v).view(DTYPES[b.dtype]) for b, v in zip(spec.bindings, views, strict=True)]
        values = spec.unpack(params).values()
        constants = (kernel.constants[name] for name in (*spec.constants, *spec.tuning))
        arguments = (*operands, *values, *constants)

        def run() -> None:
            with check("launch", kernel=spec.name):
                for y in range(grid[1]):
                    for x in range(grid[0]):
                        kernel.run(x, y, *arguments)

        if self._recording is None:
            run()
        else:
            self._recording.launches.append((spec.name, run))

    # --8<-- [end:kernels]
    # --8<-- [start:recordings]
    @contextmanager
    def record(self) -> Iterator[ToyRecording]:
        """Keep the launches of the block."""
        if self._recording is not None:
            raise ValueError("a recording is already under way")
        self._recording = recording = ToyRecording()
        try:
            yield recording
        finally:
            self._recording = None

    def replay(self, recording: Recording) -> None:
        """Run what was kept."""
        if not isinstance(recording, ToyRecording):
            raise ValueError("this recording is not one of this device")
        for _, run in recording.launches:
            run()

    def timings(self, recording: Recording) -> Sequence[tuple[str, float]]:
        """Seconds of each launch of one replay."""
        if not isinstance(recording, ToyRecording):
            raise ValueError("this recording is not one of this device")
        times = []
        for name, run in recording.launches:
            start = time.perf_counter()
            run()
            times.append((name, time.perf_counter() - start))
        return times

    # --8<-- [end:recordings]
    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def close(self) -> None:
        """Free every buffer."""
        for buffer in self._buffers:
            buffer.data = None
        self._buffers.clear()
        self._built.clear()
