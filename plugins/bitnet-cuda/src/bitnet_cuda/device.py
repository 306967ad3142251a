"""The CUDA device: one context and one stream, recordings as CUDA graphs."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bitnet_core.errors import DeviceNotFoundError
from bitnet_core.hal import Grid, MemoryKind, Tuning
from bitnet_core.hal.base import BaseDevice, Bound, Launch, Recorded
from bitnet_core.kernels.spec import KernelSpec

from bitnet_cuda import compile, recording, tuning
from bitnet_cuda.describe import TENSOR_CORE_KERNELS, attribute, compute_capability, device_infos
from bitnet_cuda.driver import driver
from bitnet_cuda.errors import NOT_READY, check
from bitnet_cuda.memory import CudaBuffer, PinnedCopies

WARPGROUP_MMA = (9, 0)
"""The compute capability whose architecture-specific instructions include wgmma."""
DEFAULT_SHARED = 48 << 10
"""Bytes of dynamic shared memory that a kernel may use without asking."""


@dataclass(eq=False, frozen=True, slots=True)
class CudaKernel:
    """A loaded function with its constants."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    module: Any
    function: Any

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.tuning.private["GROUP"]

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory."""
        return self.tuning.private.get("SHARED", 0)


class CudaDevice(BaseDevice[CudaBuffer, CudaKernel]):
    """One context on one GPU. tensor_cores=False forces the dp4a kernels (tests)."""

    def __init__(self, index: int, *, tensor_cores: bool = True) -> None:
        infos = {info.index: info for info in device_infos()}
        if index not in infos:
            raise DeviceNotFoundError(
                f"there is no device cuda:{index}", backend="cuda", hint="`bitnet devices` lists the GPUs"
            )
        info = infos[index]
        super().__init__(info if tensor_cores else replace(info, kernels=info.kernels - TENSOR_CORE_KERNELS))
        self._api = driver()
        self._handle = self.check(self._api.cuDeviceGet(index), "open")[0]
        major, minor = compute_capability(self._handle)
        self._architecture = f"sm_{major}{minor}{'a' if (major, minor) == WARPGROUP_MMA else ''}"
        self._tensor_cores = tensor_cores and major >= 8
        self._wgmma = self._tensor_cores and (major, minor) == WARPGROUP_MMA
        self._overlap = major >= 9  # programmatic dependent launch
        self._has_pool = bool(attribute(self._handle, "MEMORY_POOLS_SUPPORTED"))  # not on every virtual GPU
        self._context = self.check(self._api.cuDevicePrimaryCtxRetain(self._handle), "open")[0]
        self._current()
        self.stream = self.check(self._api.cuStreamCreate(1), "open")[0]
        self._modules: set[int] = set()
        self._copies = PinnedCopies(self)
        self._staging = self._copies.ring()

    def check(self, result: tuple[Any, ...], operation: str, **sizes: int) -> tuple[Any, ...]:
        """The values of a call; raises its error."""
        return check(result, operation, device=self.info.name, **sizes)

    def _current(self) -> None:
        """Several devices may be open in one thread: what calls the driver makes its own context current."""
        self.check(self._api.cuCtxSetCurrent(self._context), "switch context")

    def free_memory(self) -> int:
        """Bytes the driver reports as free, once what was freed has come back from the pool."""
        self._wait()
        return int(self.check(self._api.cuMemGetInfo(), "query memory")[0])

    def _alloc(self, nbytes: int, kind: MemoryKind) -> CudaBuffer:
        self._current()
        rounded = -(-nbytes // 16) * 16  # kernels read 16-byte words
        if kind is MemoryKind.HOST:
            host = int(self.check(self._api.cuMemHostAlloc(rounded, 0), "alloc", requested=nbytes)[0])
            address = int(self.check(self._api.cuMemHostGetDevicePointer(host, 0), "alloc")[0])
            ctypes.memset(host, 0, rounded)
            return CudaBuffer(address, nbytes, kind, host)
        # From the driver's pool where it has one: cuMemAlloc rounds each of hundreds of buffers up to 2 MiB.
        result = self._api.cuMemAllocAsync(rounded, self.stream) if self._has_pool else self._api.cuMemAlloc(rounded)
        free = 0 if not int(result[0]) else int(self._api.cuMemGetInfo()[1])
        address = int(self.check(result, "alloc", requested=nbytes, free=free)[0])
        self.check(self._api.cuMemsetD8Async(address, 0, rounded, self.stream), "alloc")
        return CudaBuffer(address, nbytes, kind)

    def _free(self, buffer: CudaBuffer) -> None:
        self._current()
        if buffer.kind is MemoryKind.HOST:
            self._wait()
            self.check(self._api.cuMemFreeHost(buffer.host), "free")
        elif self._has_pool:
            self.check(self._api.cuMemFreeAsync(buffer.address, self.stream), "free")  # behind what is queued
        else:
            self.check(self._api.cuMemFree(buffer.address), "free")

    def _upload(self, buffer: CudaBuffer, offset: int, source: memoryview) -> None:
        self._current()
        self._staging.upload(buffer, offset, source)

    def _download(self, buffer: CudaBuffer, offset: int, target: memoryview) -> None:
        self._wait()  # the copy itself waits without a bound
        to = ctypes.addressof((ctypes.c_char * target.nbytes).from_buffer(target))
        self.check(self._api.cuMemcpyDtoH(to, buffer.address + offset, target.nbytes), "download")

    def _copy(self, source: CudaBuffer, source_at: int, target: CudaBuffer, target_at: int, nbytes: int) -> None:
        self._current()
        to, start = target.address + target_at, source.address + source_at
        self.check(self._api.cuMemcpyDtoDAsync(to, start, nbytes, self.stream), "copy")

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """See tuning.py."""
        return tuning.choose(spec, constants, params, tensor_cores=self._tensor_cores, wgmma=self._wgmma)

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> CudaKernel:
        self._current()
        source = compile.source(spec, constants, tuning)
        cubin = compile.cached_cubin(spec.name, source, self._architecture)
        module = self.check(self._api.cuModuleLoadData(cubin), "load kernel")[0]
        self._modules.add(int(module))
        function = self.check(self._api.cuModuleGetFunction(module, spec.name.encode()), "load kernel")[0]
        kernel = CudaKernel(spec, dict(constants), tuning, module, function)
        if kernel.shared > DEFAULT_SHARED:
            name = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.check(self._api.cuFuncSetAttribute(function, name, kernel.shared), "load kernel")
        return kernel

    def _release(self, kernel: CudaKernel) -> None:
        self._wait()
        self._modules.remove(int(kernel.module))
        self.check(self._api.cuModuleUnload(kernel.module), "release")

    def _run(self, launch: Launch[CudaBuffer, CudaKernel]) -> None:
        self._current()
        self.queue(launch)

    def queue(
        self, launch: Launch[CudaBuffer, CudaKernel], *, overlaps: bool = False, ahead: Bound[CudaBuffer] | None = None
    ) -> None:
        """Queue a launch on the stream (which may be capturing). ahead: weights to ask for, where the kernel does."""
        kernel = launch.kernel
        slots = [bound.buffer.address + bound.offset for bound in launch.bound]
        slots += struct.unpack(f"<{len(launch.params) // 4}I", launch.params)
        if kernel.spec.name in recording.FETCHING:
            slots += (ahead.buffer.address + ahead.offset, ahead.nbytes) if ahead else (0, 0)
        values = (ctypes.c_uint64 * len(slots))(*slots)  # a 32-bit argument is the lower half of its slot
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * len(slots))(*range(first, first + 8 * len(slots), 8))
        arguments = ctypes.addressof(pointers)
        if overlaps and self._overlap:
            result = self._api.cuLaunchKernelEx(self._overlapping(kernel, launch.grid), kernel.function, arguments, 0)
        else:
            size = kernel.threads, 1, 1, kernel.shared
            result = self._api.cuLaunchKernel(kernel.function, *launch.grid, *size, self.stream, arguments, 0)
        self.check(result, f"launch {kernel.spec.name}")

    def _overlapping(self, kernel: CudaKernel, grid: Grid) -> Any:
        """Launch configuration with programmatic dependent launch."""
        flag = self._api.CUlaunchAttribute()
        flag.id = self._api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        flag.value.programmaticStreamSerializationAllowed = 1
        config = self._api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = kernel.threads, 1, 1
        config.sharedMemBytes = kernel.shared
        config.hStream = self.stream
        config.attrs, config.numAttrs = [flag], 1
        return config

    def _record(self, recorded: Recorded[CudaBuffer, CudaKernel]) -> None:
        self._current()
        recorded.native = recording.graph_of(self, recorded.launches)

    def _replay(self, recorded: Recorded[CudaBuffer, CudaKernel]) -> None:
        self._current()
        self.check(self._api.cuGraphLaunch(recorded.native, self.stream), "replay")

    def _forget(self, recorded: Recorded[CudaBuffer, CudaKernel]) -> None:
        self._wait()
        self.check(self._api.cuGraphExecDestroy(recorded.native), "free recording")

    def _timings(self, recorded: Recorded[CudaBuffer, CudaKernel]) -> list[float]:
        self._current()
        return recording.seconds_of(self, recorded.launches)

    def _wait(self) -> None:
        self._current()
        self.until(lambda: self._api.cuStreamQuery(self.stream), "synchronize")
        self._staging.drained()

    def until(self, query: Callable[[], tuple[Any, ...]], operation: str) -> None:
        """Ask until it is ready: the driver's own waits have no bound. GpuTimeoutError after `timeout` seconds."""
        self._until(lambda: int(query()[0]) != NOT_READY, operation)
        self.check(query(), operation)

    def _close(self) -> None:
        self._api.cuCtxSetCurrent(self._context)
        for module in self._modules:
            self._api.cuModuleUnload(module)
        self._copies.close()
        self._api.cuStreamDestroy(self.stream)
        self._api.cuDevicePrimaryCtxRelease(self._handle)
