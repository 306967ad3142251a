"""The device. It uses host memory until you replace each method's body by your driver's calls."""

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
"""Outputs (N) and rows (T) per workgroup of your kernels; core derives the grid from them."""


def device_info() -> DeviceInfo:
    """Return the description of the device; replace it by the driver's own."""
    return DeviceInfo("newbackend", 0, "reference kernels on the host", DeviceType.CPU, alignment=ALIGNMENT)


@dataclass(eq=False)
class NewBackendBuffer:
    """A buffer; add the driver's handle here."""

    data: npt.NDArray[np.uint8]
    nbytes: int
    kind: MemoryKind


@dataclass(frozen=True, eq=False)
class NewBackendKernel:
    """A compiled kernel. run: function of (arrays by binding name, parameters, constants)."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    run: Callable[[dict[str, Any], Mapping[str, int | float], Mapping[str, int]], None]


class NewBackendDevice(BaseDevice[NewBackendBuffer, NewBackendKernel]):
    """The driver's part of a device. BaseDevice keeps the rules of the contract (`bitnet_hal.device.Device`).

    Methods that may be overridden too: `_wrap`, `_record`, `_replay`, `_timings`, `_forget`, `_release`.
    """

    def __init__(self) -> None:
        super().__init__(device_info())

    def free_memory(self) -> int:
        """Return -1: unknown."""
        return -1

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """Choose the tiles of a kernel, and a workspace if its workgroups exchange data."""
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
        """Build kernels/<name>. Raise KernelCompileError with the compiler's log if it does not build."""
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
        """Wait for the queue, at most `self.timeout` seconds."""

    def _close(self) -> None:
        """Free kernels, queue and context."""
