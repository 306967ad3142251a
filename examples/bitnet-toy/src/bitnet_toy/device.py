"""The toy device: host memory, and one Python call per workgroup."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numba
import numpy as np
import numpy.typing as npt
import psutil
from bitnet_hal.plugin import (
    BaseDevice,
    BoundLaunch,
    DeviceInfo,
    DeviceType,
    KernelSpec,
    LaunchRecording,
    MemoryKind,
    Tuning,
)

from bitnet_toy.compiler import ToyKernel, build, find
from bitnet_toy.errors import check

ALIGNMENT = 16
DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}
TILES = {"TILE_N": 64, "TILE_T": 1}
"""Tuning constants: outputs (N) and rows (T) per workgroup."""


# --8<-- [start:info]
def device_info() -> DeviceInfo:
    """Return the description of the host."""
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
    """A buffer in host memory."""

    data: npt.NDArray[np.uint8]
    nbytes: int
    kind: MemoryKind


class ToyDevice(BaseDevice[ToyBuffer, ToyKernel]):
    """The driver's part of a device; BaseDevice keeps the rules of the contract."""

    def __init__(self) -> None:
        super().__init__(device_info())
        self._built: dict[str, Callable[..., None]] = {}

    def free_memory(self) -> int:
        """Return the bytes that the operating system can still provide."""
        return int(psutil.virtual_memory().available)

    # --8<-- [start:memory]
    def _alloc(self, nbytes: int, kind: MemoryKind) -> ToyBuffer:
        with check("alloc", requested=nbytes, free=self.free_memory()):
            return ToyBuffer(np.zeros(nbytes, dtype=np.uint8), nbytes, kind)

    def _free(self, buffer: ToyBuffer) -> None:
        buffer.data = np.empty(0, dtype=np.uint8)

    # --8<-- [end:memory]
    # --8<-- [start:transfers]
    def _upload(self, buffer: ToyBuffer, offset: int, source: memoryview) -> None:
        buffer.data[offset : offset + source.nbytes] = source

    def _download(self, buffer: ToyBuffer, offset: int, target: memoryview) -> None:
        target[:] = buffer.data[offset : offset + target.nbytes].data

    def _copy(self, source: ToyBuffer, source_at: int, target: ToyBuffer, target_at: int, nbytes: int) -> None:
        target.data[target_at : target_at + nbytes] = source.data[source_at : source_at + nbytes]

    # --8<-- [end:transfers]
    # --8<-- [start:kernels]
    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """Return the same tiles for all kernels, and no splitting over workgroups."""
        return Tuning({name: TILES.get(name, 1) for name in spec.tuning})

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> ToyKernel:
        if spec.name not in self._built:  # one compilation per kernel: constants are arguments
            self._built[spec.name] = build(find(spec.name), spec)
        return ToyKernel(spec, MappingProxyType(dict(constants)), tuning, self._built[spec.name])

    def _run(self, launch: BoundLaunch[ToyBuffer, ToyKernel]) -> None:
        kernel, spec = launch.kernel, launch.kernel.spec
        operands = [
            buffer.data[offset : offset + nbytes].view(DTYPES[binding.dtype])
            for binding, (buffer, offset, nbytes) in zip(spec.bindings, launch.bound, strict=True)
        ]
        known = {**kernel.constants, **kernel.tuning.tile}
        constants = (known[name] for name in (*spec.constants, *spec.tuning))
        arguments = (*operands, *spec.unpack(launch.params).values(), *constants)
        with check("launch", kernel=spec.name):
            for y in range(launch.grid[1]):
                for x in range(launch.grid[0]):
                    kernel.run(x, y, *arguments)

    # --8<-- [end:kernels]
    # --8<-- [start:recordings]
    def _timings(self, recording: LaunchRecording[ToyBuffer, ToyKernel]) -> list[float]:
        times = []
        for launch in recording.launches:
            start = time.perf_counter()
            self._run(launch)
            times.append(time.perf_counter() - start)
        return times

    # --8<-- [end:recordings]
    def _wait(self) -> None:
        pass  # launches finish before they return

    def _close(self) -> None:
        self._built.clear()
