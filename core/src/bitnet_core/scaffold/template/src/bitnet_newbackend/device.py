"""The device. Its memory is the host's until your driver's calls take the place of each body."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_core.errors import OutOfMemoryError, UnsupportedError
from bitnet_core.hal.checks import check_launch
from bitnet_core.hal.device import Buffer, DeviceInfo, DeviceType, Grid, Kernel, MemoryKind, Recording, View
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.kernels.spec import KernelSpec

ALIGNMENT = 64
DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}
TILES = {"TILE_N": 64, "TILE_T": 1}
"""Tuning: outputs and rows that one workgroup of your kernels computes. The grid is computed from it."""


def device_info() -> DeviceInfo:
    """Ask the driver for all of this."""
    return DeviceInfo("newbackend", 0, "a device to be", DeviceType.SOFTWARE, alignment=ALIGNMENT)


@dataclass(eq=False)
class NewBackendBuffer:
    """Keep the driver's handle here; None once freed."""

    data: npt.NDArray[np.uint8] | None
    nbytes: int
    kind: MemoryKind


@dataclass(frozen=True)
class NewBackendKernel:
    """run(arrays by binding name, parameters, constants)."""

    spec: KernelSpec
    constants: Mapping[str, int]
    run: Callable[[dict[str, Any], Mapping[str, int | float], Mapping[str, int]], None]


@dataclass(eq=False)
class NewBackendRecording:
    """Prepared launches; a command buffer or a graph where the driver has one."""

    launches: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        """Forget the launches."""
        self.launches.clear()


class NewBackendDevice:
    """The methods of `bitnet_core.hal.device.Device`; its docstrings are the contract."""

    def __init__(self) -> None:
        self.info = device_info()
        self._buffers: set[NewBackendBuffer] = set()
        self._recording: NewBackendRecording | None = None

    def free_memory(self) -> int:
        """-1: not known."""
        return -1

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> NewBackendBuffer:
        """Zero-filled."""
        if nbytes <= 0:
            raise ValueError(f"a buffer needs at least one byte, not {nbytes}")
        try:
            data = np.zeros(nbytes, dtype=np.uint8)
        except MemoryError as exc:
            raise OutOfMemoryError("out of memory", requested=nbytes, backend="newbackend") from exc
        buffer = NewBackendBuffer(data, nbytes, kind)
        self._buffers.add(buffer)
        return buffer

    def wrap(self, host: memoryview) -> NewBackendBuffer | None:
        """None: core copies instead."""
        return None

    def free(self, buffer: Buffer) -> None:
        """Twice, or of another device, is a ValueError."""
        mine = self._mine(buffer)
        self._buffers.remove(mine)
        mine.data = None

    def _mine(self, buffer: Buffer) -> NewBackendBuffer:
        if not isinstance(buffer, NewBackendBuffer) or buffer not in self._buffers:
            raise ValueError("this buffer is not, or no longer, one of this device")
        return buffer

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
        """Copy out, and wait."""
        if src.nbytes != dst.nbytes:
            raise ValueError(f"download of a view of {src.nbytes} bytes into {dst.nbytes}")
        np.frombuffer(dst, dtype=np.uint8)[:] = self._bytes(src)

    def copy(self, src: View, dst: View) -> None:
        """Copy within the device."""
        if src.nbytes != dst.nbytes:
            raise ValueError(f"copy of {src.nbytes} bytes into a view of {dst.nbytes}")
        self._bytes(dst)[:] = self._bytes(src)

    def tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> dict[str, int]:
        """The tiles that the kernel is compiled with."""
        return {name: TILES[name] for name in spec.tuning}

    def compile(self, spec: KernelSpec, constants: Mapping[str, int]) -> NewBackendKernel:
        """Build kernels/<name> with `constants`; KernelCompileError with the compiler's log if it does not build."""
        if CATALOGUE.get(spec.name) is not spec:
            raise UnsupportedError(f"{spec.name} is not a catalogue kernel", backend="newbackend", operation="compile")
        spec.check_constants(constants)
        try:
            module = importlib.import_module(f"bitnet_newbackend.kernels.{spec.name}")
        except ModuleNotFoundError as exc:
            raise UnsupportedError(
                f"the kernel {spec.name} is not written yet",
                backend="newbackend",
                operation="compile",
                hint=f"Write src/bitnet_newbackend/kernels/{spec.name}.py",
            ) from exc
        return NewBackendKernel(spec, dict(constants), getattr(module, spec.name))

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """Queue the kernel with `grid` workgroups, or keep it for replay."""
        if not isinstance(kernel, NewBackendKernel):
            raise ValueError("this kernel is not one of this device")
        spec = kernel.spec
        check_launch(spec, views, params, self.info, kernel.constants)
        arrays: dict[str, Any] = {}
        for binding, view in zip(spec.bindings, views, strict=True):
            arrays[binding.name] = self._bytes(view).view(DTYPES[binding.dtype])
        values = spec.unpack(params)

        def run() -> None:
            kernel.run(arrays, values, kernel.constants)

        if self._recording is None:
            run()
        else:
            self._recording.launches.append(run)

    @contextmanager
    def record(self) -> Iterator[NewBackendRecording]:
        """Keep the launches of the block."""
        if self._recording is not None:
            raise ValueError("a recording is already under way")
        self._recording = recording = NewBackendRecording()
        try:
            yield recording
        finally:
            self._recording = None

    def replay(self, recording: Recording) -> None:
        """Queue what was kept."""
        if not isinstance(recording, NewBackendRecording):
            raise ValueError("this recording is not one of this device")
        for run in recording.launches:
            run()

    def synchronize(self) -> None:
        """Wait for the queue."""

    def close(self) -> None:
        """Free everything."""
        for buffer in self._buffers:
            buffer.data = None
        self._buffers.clear()
