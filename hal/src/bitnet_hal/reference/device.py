"""The numpy device: the HAL over host memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from bitnet_hal.base import BaseDevice, BoundLaunch, LaunchRecording
from bitnet_hal.device import DeviceInfo, MemoryKind, Tuning
from bitnet_hal.errors import OutOfMemoryError
from bitnet_hal.host_memory import available_memory
from bitnet_hal.kernels.spec import Constants, KernelSpec, Params
from bitnet_hal.reference import describe
from bitnet_hal.reference.meanings import MEANINGS


@dataclass(eq=False, slots=True)
class NumpyBuffer:
    """A buffer in host memory."""

    data: npt.NDArray[np.uint8]
    nbytes: int
    kind: MemoryKind


@dataclass(frozen=True, eq=False, slots=True)
class NumpyKernel:
    """A reference function with its constants."""

    spec: KernelSpec
    constants: Constants
    tuning: Tuning


class NumpyDevice(BaseDevice[NumpyBuffer, NumpyKernel]):
    """A device that runs every launch immediately, in the calling thread."""

    def __init__(self, info: DeviceInfo | None = None) -> None:
        super().__init__(info or describe.numpy_info())

    def free_memory(self) -> int:
        """Return the bytes that the operating system can still provide."""
        return available_memory()

    def tuning(self, spec: KernelSpec, constants: Constants, params: Params) -> Tuning:
        """Return one tile that covers the whole launch: numpy has no workgroups."""
        return Tuning({name: _EVERYTHING if name.startswith("TILE_") else 1 for name in spec.tuning})

    def _alloc(self, nbytes: int, kind: MemoryKind) -> NumpyBuffer:
        free = self.free_memory()
        try:
            if nbytes > free:
                raise MemoryError
            return NumpyBuffer(np.zeros(nbytes, dtype=np.uint8), nbytes, kind)
        except MemoryError as exc:
            raise OutOfMemoryError(
                f"cannot allocate {nbytes:,} bytes, {free:,} are free",
                requested=nbytes,
                free=free,
                backend=self.info.backend,
                hint="Use a smaller context or close other programs",
            ) from exc

    def _wrap(self, host: memoryview) -> NumpyBuffer:
        return NumpyBuffer(np.frombuffer(host, dtype=np.uint8), host.nbytes, MemoryKind.SHARED)

    def _free(self, buffer: NumpyBuffer) -> None:
        buffer.data = _NOTHING

    def _upload(self, buffer: NumpyBuffer, offset: int, source: memoryview) -> None:
        buffer.data[offset : offset + source.nbytes] = source

    def _download(self, buffer: NumpyBuffer, offset: int, target: memoryview) -> None:
        target[:] = buffer.data[offset : offset + target.nbytes].data

    def _copy(self, source: NumpyBuffer, source_at: int, target: NumpyBuffer, target_at: int, nbytes: int) -> None:
        target.data[target_at : target_at + nbytes] = source.data[source_at : source_at + nbytes]

    def _compile(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> NumpyKernel:
        return NumpyKernel(spec, MappingProxyType(dict(constants)), tuning)

    def _run(self, launch: BoundLaunch[NumpyBuffer, NumpyKernel]) -> None:
        spec = launch.kernel.spec
        constants = launch.kernel.constants
        arrays = {}
        for binding, (buffer, offset, nbytes) in zip(spec.bindings, launch.bound, strict=True):
            dtype = np.dtype(_DTYPES[binding.dtype])
            arrays[binding.name] = buffer.data[offset : offset + nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
        with np.errstate(all="ignore"):
            MEANINGS[spec.name](arrays, spec.unpack(launch.params), constants)

    def _timings(self, recording: LaunchRecording[NumpyBuffer, NumpyKernel]) -> list[float]:
        times = []
        for launch in recording.launches:
            began = time.perf_counter()
            self._run(launch)
            times.append(time.perf_counter() - began)
        return times

    def _wait(self) -> None:
        pass  # every call is synchronous

    def _close(self) -> None:
        pass


_EVERYTHING = 1 << 30
_NOTHING = np.empty(0, dtype=np.uint8)
_DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}
