"""The device. Its memory is the host's until your driver's calls take the place of each body."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.errors import OutOfMemoryError, UnsupportedError
from bitnet_hal.plugin import BaseDevice, BoundLaunch, DeviceInfo, DeviceType, KernelSpec, MemoryKind, Tuning

ALIGNMENT = 64
DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}
TILES = {"TILE_N": 64, "TILE_T": 1}
"""Outputs and rows that one workgroup of your kernels computes; core makes the grid of them."""


def device_info() -> DeviceInfo:
    """Ask the driver for all of this."""
    return DeviceInfo("newbackend", 0, "a device to be", DeviceType.SOFTWARE, alignment=ALIGNMENT)


@dataclass(eq=False)
class NewBackendBuffer:
    """Keep the driver's handle here."""

    data: npt.NDArray[np.uint8]
    nbytes: int
    kind: MemoryKind


@dataclass(frozen=True, eq=False)
class NewBackendKernel:
    """run(arrays by binding name, parameters, constants)."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    run: Callable[[dict[str, Any], Mapping[str, int | float], Mapping[str, int]], None]


class NewBackendDevice(BaseDevice[NewBackendBuffer, NewBackendKernel]):
    """What is your driver's. The contract is `bitnet_hal.device.Device`; BaseDevice keeps its rules, and has more
    methods that may be written: `_wrap`, `_record`, `_replay`, `_timings`, `_forget`, `_release`."""

    def __init__(self) -> None:
        super().__init__(device_info())

    def free_memory(self) -> int:
        """-1: not known."""
        return -1

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """The tiles that a kernel is compiled with, and its workspace where its workgroups exchange something."""
        return Tuning({name: TILES.get(name, 1) for name in spec.tuning})

    def _alloc(self, nbytes: int, kind: MemoryKind) -> NewBackendBuffer:
        try:
            return NewBackendBuffer(np.zeros(nbytes, dtype=np.uint8), nbytes, kind)
        except MemoryError as exc:
            raise OutOfMemoryError("out of memory", requested=nbytes, backend="newbackend") from exc

    def _free(self, buffer: NewBackendBuffer) -> None:
        buffer.data = np.empty(0, dtype=np.uint8)

    def _upload(self, buffer: NewBackendBuffer, offset: int, source: memoryview) -> None:
        buffer.data[offset : offset + source.nbytes] = source

    def _download(self, buffer: NewBackendBuffer, offset: int, target: memoryview) -> None:
        target[:] = buffer.data[offset : offset + target.nbytes].data

    def _copy(
        self, source: NewBackendBuffer, source_at: int, target: NewBackendBuffer, target_at: int, nbytes: int
    ) -> None:
        target.data[target_at : target_at + nbytes] = source.data[source_at : source_at + nbytes]

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> NewBackendKernel:
        """Build kernels/<name>; KernelCompileError with the compiler's log if it does not build."""
        try:
            module = importlib.import_module(f"bitnet_newbackend.kernels.{spec.name}")
        except ModuleNotFoundError as exc:
            raise UnsupportedError(
                f"the kernel {spec.name} is not written yet",
                backend="newbackend",
                operation="compile",
                hint=f"Write src/bitnet_newbackend/kernels/{spec.name}.py",
            ) from exc
        return NewBackendKernel(spec, dict(constants), tuning, getattr(module, spec.name))

    def _run(self, launch: BoundLaunch[NewBackendBuffer, NewBackendKernel]) -> None:
        """Queue the kernel with launch.grid workgroups."""
        spec, arrays = launch.kernel.spec, dict[str, Any]()
        for binding, (buffer, offset, nbytes) in zip(spec.bindings, launch.bound, strict=True):
            arrays[binding.name] = buffer.data[offset : offset + nbytes].view(DTYPES[binding.dtype])
        launch.kernel.run(arrays, spec.unpack(launch.params), launch.kernel.constants)

    def _wait(self) -> None:
        """For the queue, `self.timeout` seconds at most."""

    def _close(self) -> None:
        """Free kernels, queue and context."""
