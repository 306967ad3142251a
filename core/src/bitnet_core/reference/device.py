"""The numpy device: the HAL over host memory."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import psutil

from bitnet_core.errors import OutOfMemoryError, UnsupportedError
from bitnet_core.hal.checks import check_launch, check_transfer
from bitnet_core.hal.device import (
    Buffer,
    DeviceInfo,
    DeviceType,
    Grid,
    Kernel,
    MemoryKind,
    Recording,
    TransferMode,
    View,
)
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.kernels.spec import KernelSpec
from bitnet_core.reference.meanings import MEANINGS

ALIGNMENT = 64
"""Bytes; what SIMD loads of other CPU devices like, kept here so that unaligned plans are found early."""


def numpy_info() -> DeviceInfo:
    """The one device of the numpy backend."""
    total = psutil.virtual_memory().total
    return DeviceInfo(
        backend="numpy",
        index=0,
        name=f"numpy {np.__version__} on {platform.machine()}",
        type=DeviceType.CPU,
        driver=f"numpy {np.__version__}",
        total_memory=total,
        max_allocation=total,
        max_binding=total,
        alignment=ALIGNMENT,
        transfer=TransferMode.UNIFIED,
        kernels=frozenset({"top_k"}),
        features=frozenset({"timings"}),
        extra=MappingProxyType({"active_kernel": "numpy"}),
    )


@dataclass(eq=False, slots=True)
class NumpyBuffer:
    """Bytes in host memory; `data` is None once freed."""

    data: npt.NDArray[np.uint8] | None
    nbytes: int
    kind: MemoryKind


@dataclass(frozen=True, slots=True)
class NumpyKernel:
    """A meaning with its constants."""

    spec: KernelSpec
    constants: Mapping[str, int]


@dataclass(eq=False, slots=True)
class NumpyRecording:
    """Prepared launches."""

    launches: list[tuple[str, Callable[[], None]]] = field(default_factory=list)

    def close(self) -> None:
        """Forget the launches."""
        self.launches.clear()


class NumpyDevice:
    """Runs every launch at once, in the calling thread."""

    def __init__(self, info: DeviceInfo | None = None) -> None:
        self.info = info or numpy_info()
        self._buffers: set[NumpyBuffer] = set()
        self._recording: NumpyRecording | None = None

    def free_memory(self) -> int:
        """Bytes the operating system could still give."""
        return int(psutil.virtual_memory().available)

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> NumpyBuffer:
        """Zero-filled host memory, whatever the kind."""
        if nbytes <= 0:
            raise ValueError(f"a buffer needs at least one byte, not {nbytes}")
        free = self.free_memory()
        try:
            if nbytes > free:
                raise MemoryError
            data = np.zeros(nbytes, dtype=np.uint8)
        except MemoryError as exc:
            raise OutOfMemoryError(
                f"cannot allocate {nbytes:,} bytes, {free:,} are free",
                requested=nbytes,
                free=free,
                backend="numpy",
                hint="Use a smaller context or close other programs",
            ) from exc
        return self._keep(data, kind)

    def _keep(self, data: npt.NDArray[np.uint8], kind: MemoryKind) -> NumpyBuffer:
        buffer = NumpyBuffer(data, data.nbytes, kind)
        self._buffers.add(buffer)
        return buffer

    def wrap(self, host: memoryview) -> NumpyBuffer | None:
        """The memory itself."""
        return self._keep(np.frombuffer(host, dtype=np.uint8), MemoryKind.SHARED)

    def free(self, buffer: Buffer) -> None:
        """Drop the memory; ValueError if it is not (or no longer) a buffer of this device."""
        if not isinstance(buffer, NumpyBuffer) or buffer not in self._buffers:
            raise ValueError("this buffer is not, or no longer, one of this device")
        self._buffers.remove(buffer)
        buffer.data = None

    def _bytes(self, view: View) -> npt.NDArray[np.uint8]:
        buffer = view.buffer
        if not isinstance(buffer, NumpyBuffer) or buffer not in self._buffers or buffer.data is None:
            raise ValueError("this buffer is not, or no longer, one of this device")
        return buffer.data[view.offset : view.offset + view.nbytes]

    def upload(self, dst: View, src: memoryview) -> None:
        """Copy in."""
        check_transfer("upload", src.nbytes, dst.nbytes)
        self._bytes(dst)[:] = np.frombuffer(src, dtype=np.uint8)

    def download(self, src: View, dst: memoryview) -> None:
        """Copy out."""
        check_transfer("download", src.nbytes, dst.nbytes)
        np.frombuffer(dst, dtype=np.uint8)[:] = self._bytes(src)

    def copy(self, src: View, dst: View) -> None:
        """Copy within the device."""
        check_transfer("copy", src.nbytes, dst.nbytes)
        self._bytes(dst)[:] = self._bytes(src)

    def tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> dict[str, int]:
        """Tiles mean nothing here: one workgroup covers everything."""
        return dict.fromkeys(spec.tuning, 1 << 30)

    def compile(self, spec: KernelSpec, constants: Mapping[str, int]) -> NumpyKernel:
        """Look the meaning up."""
        if CATALOGUE.get(spec.name) is not spec:
            raise UnsupportedError(f"{spec.name} is not a catalogue kernel", backend="numpy", operation="compile")
        spec.check_constants(constants)
        return NumpyKernel(spec, MappingProxyType(dict(constants)))

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """Run now, or keep for replay while recording."""
        check_launch(kernel.spec, views, params, self.info, kernel.constants)
        arrays = {}
        for binding, view in zip(kernel.spec.bindings, views, strict=True):
            data = self._bytes(view)
            itemsize = 1 if binding.dtype in ("u8", "i8") else 4
            arrays[binding.name] = data[: len(data) // itemsize * itemsize].view(_DTYPES[binding.dtype])
        meaning, values = MEANINGS[kernel.spec.name], kernel.spec.unpack(params)

        def run() -> None:
            with np.errstate(all="ignore"):
                meaning(arrays, values, kernel.constants)

        if self._recording is None:
            run()
        else:
            self._recording.launches.append((kernel.spec.name, run))

    @contextmanager
    def record(self) -> Iterator[NumpyRecording]:
        """Keep the launches of the block."""
        if self._recording is not None:
            raise ValueError("a recording is already under way")
        self._recording = recording = NumpyRecording()
        try:
            yield recording
        finally:
            self._recording = None

    def replay(self, recording: Recording) -> None:
        """Run the kept launches."""
        if not isinstance(recording, NumpyRecording):
            raise ValueError("this recording is not one of this device")
        for _, launch in recording.launches:
            launch()

    def timings(self, recording: Recording) -> list[tuple[str, float]]:
        """Replay once; (kernel, seconds) of every launch."""
        if not isinstance(recording, NumpyRecording):
            raise ValueError("this recording is not one of this device")
        times = []
        for name, launch in recording.launches:
            began = time.perf_counter()
            launch()
            times.append((name, time.perf_counter() - began))
        return times

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def close(self) -> None:
        """Free every buffer."""
        for buffer in self._buffers:
            buffer.data = None
        self._buffers.clear()


_DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}
