"""The CUDA device: the HAL over one context and one stream, recordings as CUDA graphs."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bitnet_core.errors import DeviceNotFoundError
from bitnet_core.hal import Buffer, Grid, Kernel, MemoryKind, Recording, View
from bitnet_core.hal.checks import check_launch, check_transfer
from bitnet_core.kernels.spec import KernelSpec

from bitnet_cuda import compiler, overlap, timing, tuning
from bitnet_cuda.decode_tiles import WORKSPACE
from bitnet_cuda.errors import check
from bitnet_cuda.memory import CudaBuffer, Staging
from bitnet_cuda.query import TENSOR_CORE_KERNELS, compute_capability, device_infos, driver, has_memory_pool

WARPGROUP_MMA = (9, 0)
"""The compute capability whose architecture-specific instructions include wgmma."""
DEFAULT_SHARED = 48 << 10
"""Bytes of dynamic shared memory that a kernel may use without asking."""


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A loaded function with its constants."""

    spec: KernelSpec
    constants: Mapping[str, int]
    function: Any
    group: int
    shared: int  # bytes of dynamic shared memory
    overlaps: bool  # it waits for the kernels before it by itself, so it may be started while they run
    fetches: bool  # it asks for what a later kernel reads


class CudaRecording:
    """An executable graph; replaying it is one driver call."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.graph: Any = None
        self.launches: list[tuple[CudaKernel, Grid, tuple[View, ...], bytes]] = []

    def close(self) -> None:
        """Destroy the graph once the device is done with it."""
        self.launches.clear()
        if self.graph is not None:
            graph, self.graph = self.graph, None
            self._device.forget(graph)


class CudaDevice:
    """One context on one GPU. tensor_cores=False forces the dp4a kernels (tests)."""

    def __init__(self, index: int, *, tensor_cores: bool = True) -> None:
        infos = {info.index: info for info in device_infos()}
        if index not in infos:
            raise DeviceNotFoundError(
                f"there is no device cuda:{index}", backend="cuda", hint="`bitnet devices` lists the GPUs"
            )
        self.info = infos[index]
        if not tensor_cores:
            self.info = replace(self.info, kernels=self.info.kernels - TENSOR_CORE_KERNELS)
        self._api = driver()
        handle = self._check(self._api.cuDeviceGet(index), "open")[0]
        self._handle = handle
        major, minor = compute_capability(handle)
        self._architecture = f"sm_{major}{minor}{'a' if (major, minor) == WARPGROUP_MMA else ''}"
        self._tensor_cores = tensor_cores and major >= 8
        self._wgmma = self._tensor_cores and (major, minor) == WARPGROUP_MMA
        self._overlap = major >= 9  # programmatic dependent launch
        self._has_pool = has_memory_pool(handle)
        self._context = self._check(self._api.cuDevicePrimaryCtxRetain(handle), "open")[0]
        self._closed = False
        self._current()
        self.stream = self._check(self._api.cuStreamCreate(1), "open")[0]
        self._staging = Staging(self.stream, self.info.name)
        self._workspace = int(self._check(self._api.cuMemAlloc(WORKSPACE), "open", requested=WORKSPACE)[0])
        self._check(self._api.cuMemsetD8Async(self._workspace, 0, WORKSPACE, self.stream), "open")
        self._buffers: set[CudaBuffer] = set()
        self._modules: list[Any] = []
        self._capturing: CudaRecording | None = None
        self._graphs: set[Any] = set()

    def _check(self, result: tuple[Any, ...], operation: str, **sizes: int) -> tuple[Any, ...]:
        return check(result, operation, device=self.info.name, **sizes)

    def _current(self) -> None:
        """Two devices may be open in one thread: every entry point makes its own context current."""
        self._check(self._api.cuCtxSetCurrent(self._context), "switch context")

    def free_memory(self) -> int:
        """Bytes the driver reports as free."""
        self._current()
        return int(self._check(self._api.cuMemGetInfo(), "query memory")[0])

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> CudaBuffer:
        """Zero-filled device, pinned or managed memory."""
        if nbytes <= 0:
            raise ValueError(f"a buffer needs at least one byte, not {nbytes}")
        self._current()
        free = self.free_memory()
        sizes = {"requested": nbytes, "free": free}
        rounded = -(-nbytes // 16) * 16  # kernels read 16-byte words
        if kind is MemoryKind.HOST:
            host = int(self._check(self._api.cuMemHostAlloc(rounded, 0), "alloc", **sizes)[0])
            address = int(self._check(self._api.cuMemHostGetDevicePointer(host, 0), "alloc", **sizes)[0])
            buffer = CudaBuffer(address, nbytes, kind, host)
            ctypes.memset(host, 0, rounded)
        else:
            make = self._pooled if kind is MemoryKind.DEVICE else self._managed
            buffer = CudaBuffer(int(self._check(make(rounded), "alloc", **sizes)[0]), nbytes, kind)
            self._check(self._api.cuMemsetD8Async(buffer.address, 0, rounded, self.stream), "alloc")
        self._buffers.add(buffer)
        return buffer

    def _pooled(self, nbytes: int) -> tuple[Any, ...]:
        """From the driver's pool where it has one: cuMemAlloc rounds each of hundreds of buffers up to 2 MiB."""
        if self._has_pool:
            return tuple(self._api.cuMemAllocAsync(nbytes, self.stream))
        return tuple(self._api.cuMemAlloc(nbytes))

    def _managed(self, nbytes: int) -> tuple[Any, ...]:
        return tuple(self._api.cuMemAllocManaged(nbytes, 1))

    def wrap(self, host: memoryview) -> CudaBuffer | None:
        """Host memory is copied: weights read over the bus would be slower."""
        return None

    def _own(self, buffer: Buffer) -> CudaBuffer:
        if not isinstance(buffer, CudaBuffer) or buffer not in self._buffers:
            raise ValueError("this buffer is not, or no longer, one of this device")
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Wait until the device is done with the buffer, then free it."""
        own = self._own(buffer)
        self.synchronize()
        self._buffers.remove(own)
        if own.kind is MemoryKind.HOST:
            self._check(self._api.cuMemFreeHost(own.host), "free")
        elif own.kind is MemoryKind.DEVICE and self._has_pool:
            self._check(self._api.cuMemFreeAsync(own.address, self.stream), "free")
            self.synchronize()  # here the pool gives back what it does not use
        else:
            self._check(self._api.cuMemFree(own.address), "free")

    def upload(self, dst: View, src: memoryview) -> None:
        """Copy in through pinned staging memory."""
        check_transfer("upload", src.nbytes, dst.nbytes)
        buffer = self._own(dst.buffer)
        self._current()
        if src.nbytes:
            self._staging.upload(buffer.address + dst.offset, src.cast("B"))

    def download(self, src: View, dst: memoryview) -> None:
        """Copy out, waiting for everything queued before."""
        check_transfer("download", src.nbytes, dst.nbytes)
        buffer = self._own(src.buffer)
        self._current()
        if src.nbytes:
            target = ctypes.addressof((ctypes.c_char * dst.nbytes).from_buffer(dst.cast("B")))
            address = buffer.address + src.offset
            self._check(self._api.cuMemcpyDtoHAsync(target, address, src.nbytes, self.stream), "download")
        self.synchronize()

    def copy(self, src: View, dst: View) -> None:
        """Copy within the device."""
        check_transfer("copy", src.nbytes, dst.nbytes)
        source, target = self._own(src.buffer), self._own(dst.buffer)
        self._current()
        if src.nbytes:
            here, there = target.address + dst.offset, source.address + src.offset
            self._check(self._api.cuMemcpyDtoDAsync(here, there, src.nbytes, self.stream), "copy")

    def tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> dict[str, int]:
        """See tuning.py."""
        return tuning.choose(spec, constants, params, tensor_cores=self._tensor_cores, wgmma=self._wgmma)

    def compile(self, spec: KernelSpec, constants: Mapping[str, int]) -> CudaKernel:
        """NVRTC, or the disk cache."""
        spec.check_constants(constants)
        source = compiler.source_text(compiler.source_file(spec, constants), constants)
        return self.compile_source(spec, constants, source)

    def compile_source(self, spec: KernelSpec, constants: Mapping[str, int], source: str) -> CudaKernel:
        """Compile a given translation unit that defines `spec.name`."""
        self._current()
        cubin = compiler.cached_cubin(spec.name, source, self._architecture)
        module = self._check(self._api.cuModuleLoadData(cubin), "load kernel")[0]
        self._modules.append(module)
        function = self._check(self._api.cuModuleGetFunction(module, spec.name.encode()), "load kernel")[0]
        shared = constants.get("SHARED", 0)
        if shared > DEFAULT_SHARED:
            attribute = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(self._api.cuFuncSetAttribute(function, attribute, shared), "load kernel")
        overlaps, fetches = "wait_for_previous();" in source, "fetch_ahead(ahead" in source
        return CudaKernel(spec, dict(constants), function, constants["GROUP"], shared, overlaps, fetches)

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """Queue one kernel on the stream, or keep it for the recording under way."""
        if not isinstance(kernel, CudaKernel):
            raise ValueError("this kernel is not one of this device")
        check_launch(kernel.spec, views, params, self.info, kernel.constants)
        for view in views:
            self._own(view.buffer)
        if self._capturing is None:
            self._queue(kernel, grid, views, params)
        else:
            self._capturing.launches.append((kernel, grid, tuple(views), params))

    def _queue(
        self,
        kernel: CudaKernel,
        grid: Grid,
        views: Sequence[View],
        params: bytes,
        *,
        overlaps: bool = False,
        ahead: View | None = None,
    ) -> None:
        """Queue a launch on the stream (which may be capturing). ahead: weights to ask for, where the kernel does."""
        slots = [self._own(view.buffer).address + view.offset for view in views]
        if 0 in grid:
            return
        slots += struct.unpack(f"<{len(params) // 4}I", params)
        if splits := kernel.constants.get("SPLITS"):
            grid = grid[0], grid[1], splits
            slots.append(self._workspace)
        if heads := kernel.constants.get("HEADS"):
            grid = -(-grid[0] // heads), grid[1], 1
        if kernel.fetches:
            slots += (self._own(ahead.buffer).address + ahead.offset, ahead.nbytes) if ahead else (0, 0)
        values = (ctypes.c_uint64 * len(slots))(*slots)  # a 32-bit argument is the lower half of its slot
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * len(slots))(*range(first, first + 8 * len(slots), 8))
        self._current()
        size = kernel.group, 1, 1, kernel.shared
        arguments = ctypes.addressof(pointers)
        if overlaps and self._overlap:
            result = self._api.cuLaunchKernelEx(self._overlapping(kernel, grid), kernel.function, arguments, 0)
        else:
            result = self._api.cuLaunchKernel(kernel.function, *grid, *size, self.stream, arguments, 0)
        self._check(result, f"launch {kernel.spec.name}")

    def _overlapping(self, kernel: CudaKernel, grid: Grid) -> Any:
        """Launch configuration with programmatic dependent launch."""
        attribute = self._api.CUlaunchAttribute()
        attribute.id = self._api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config = self._api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = kernel.group, 1, 1
        config.sharedMemBytes = kernel.shared
        config.hStream = self.stream
        config.attrs, config.numAttrs = [attribute], 1
        return config

    @contextmanager
    def record(self) -> Iterator[CudaRecording]:
        """Launches of the block are kept, then captured into a graph."""
        if self._capturing is not None:
            raise ValueError("a recording is already under way")
        self._capturing = recording = CudaRecording(self)
        try:
            yield recording
        finally:
            self._capturing = None
        recording.graph = self._captured(recording.launches)
        self._graphs.add(recording.graph)

    def _captured(self, launches: Sequence[tuple[CudaKernel, Grid, tuple[View, ...], bytes]]) -> Any:
        """An executable graph of launches."""
        self._current()
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._check(self._api.cuStreamBeginCapture(self.stream, mode), "record")
        overlaps, ahead = overlap.may_overlap(launches), overlap.weights_ahead(launches)
        try:
            for i, launch in enumerate(launches):
                self._queue(*launch, overlaps=overlaps[i], ahead=ahead[i])
        finally:
            graph = self._check(self._api.cuStreamEndCapture(self.stream), "record")[0]
        executable = self._check(self._api.cuGraphInstantiate(graph, 0), "record")[0]
        self._check(self._api.cuGraphDestroy(graph), "record")
        return executable

    def replay(self, recording: Recording) -> None:
        """Launch the graph."""
        if not isinstance(recording, CudaRecording) or recording.graph is None:
            raise ValueError("this recording is not, or no longer, one of this device")
        self._current()
        self._check(self._api.cuGraphLaunch(recording.graph, self.stream), "replay")

    def timings(self, recording: Recording) -> list[tuple[str, float]]:
        """Replay once; (kernel, seconds) of every launch, by events between them. Kernels do not overlap here."""
        if not isinstance(recording, CudaRecording) or recording.graph is None:
            raise ValueError("this recording is not, or no longer, one of this device")
        self._current()
        launches = [partial(self.launch, *arguments) for arguments in recording.launches]
        seconds = timing.seconds_of(self.stream, launches, self.info.name)
        return [(arguments[0].spec.name, s) for arguments, s in zip(recording.launches, seconds, strict=True)]

    def forget(self, graph: Any) -> None:
        """Destroy a recording's graph."""
        if not self._closed:
            self.synchronize()
            self._graphs.remove(graph)
            self._check(self._api.cuGraphExecDestroy(graph), "free recording")

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._current()
        self._check(self._api.cuStreamSynchronize(self.stream), "synchronize")
        self._staging.drained()

    def close(self) -> None:
        """Free everything; a dead context frees nothing and says nothing."""
        if self._closed:
            return
        self._closed = True
        api = self._api
        api.cuCtxSetCurrent(self._context)
        api.cuStreamSynchronize(self.stream)
        for buffer in self._buffers:
            if buffer.kind is MemoryKind.HOST:
                api.cuMemFreeHost(buffer.host)
            else:
                api.cuMemFree(buffer.address)
        self._buffers.clear()
        for graph in self._graphs:
            api.cuGraphExecDestroy(graph)
        for module in self._modules:
            api.cuModuleUnload(module)
        self._staging.close()
        api.cuMemFree(self._workspace)
        api.cuStreamDestroy(self.stream)
        api.cuDevicePrimaryCtxRelease(self._handle)
