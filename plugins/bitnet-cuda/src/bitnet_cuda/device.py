"""The CUDA device: one context, one stream, and recordings as CUDA graphs."""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bitnet_hal.base import Bound
from bitnet_hal.driver_methods import DriverMethods
from bitnet_hal.families.stream import Calls, Result, StreamBuffer, StreamDevice, StreamKernel, StreamLaunch
from bitnet_hal.features import MAX_MARKS
from bitnet_hal.plugin import DeviceInfo, Grid, KernelSpec, MemoryKind, Tuning

from bitnet_cuda import compile, invariant_tiles, joined_norms, next_weights, nvml, recording, tensor_maps, tuning
from bitnet_cuda.describe import TENSOR_CORE_KERNELS, WARPGROUP_MMA, attribute, compute_capability
from bitnet_cuda.driver import driver
from bitnet_cuda.errors import check

DISABLE_TIMING = 2
"""CU_EVENT_DISABLE_TIMING: streams wait for such an event sooner."""
PEER_ENABLED = 704
"""CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED."""
EXTERNAL = 1
"""CU_EVENT_RECORD_EXTERNAL: an event that is recorded during a capture becomes a node of the graph."""


def calls(api: Any, context: Any, *, pool: bool) -> Calls:
    """Return the driver's functions for StreamDevice.

    pool: allocate from the driver's pool, since cuMemAlloc rounds each of hundreds of buffers up to 2 MiB.
    """
    return Calls(
        select=lambda: api.cuCtxSetCurrent(context),
        create_stream=lambda: api.cuStreamCreate(1),
        create_event=lambda: api.cuEventCreate(0),
        capture=lambda stream: api.cuStreamBeginCapture(stream, api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED),
        instantiate=lambda graph: api.cuGraphInstantiate(graph, 0),
        alloc=api.cuMemAllocAsync if pool else lambda nbytes, _: api.cuMemAlloc(nbytes),
        free=api.cuMemFreeAsync if pool else lambda address, _: api.cuMemFree(address),
        alloc_host=lambda nbytes: api.cuMemHostAlloc(nbytes, 0),
        free_host=api.cuMemFreeHost,
        fill=api.cuMemsetD8Async,
        upload=api.cuMemcpyHtoDAsync,
        download=api.cuMemcpyDtoH,
        copy=api.cuMemcpyDtoDAsync,
    )


class CudaDevice(StreamDevice):
    """A GPU with one context. tensor_cores=False forces the dp4a kernels, for tests."""

    prefix = "cu"

    def __init__(self, info: DeviceInfo, *, tensor_cores: bool = True) -> None:
        api = driver()
        self._handle = check(api.cuDeviceGet(info.index), "open")[0]
        self.ordered_free = bool(attribute(self._handle, "MEMORY_POOLS_SUPPORTED"))  # some virtual GPUs have none
        major, minor = compute_capability(self._handle)
        self._architecture = f"sm_{major}{minor}{'a' if (major, minor) == WARPGROUP_MMA else ''}"
        self._tensor_cores = tensor_cores and major >= 8
        self._wgmma = self._tensor_cores and (major, minor) == WARPGROUP_MMA
        self._overlap = major >= 9  # programmatic dependent launch
        self._context = context = check(api.cuDevicePrimaryCtxRetain(self._handle), "open")[0]
        self._marks: deque[Any] = deque()  # events, the oldest first
        self._granted: set[int] = set()  # indices of the peers whose memory this device has access to
        offered = info if tensor_cores else replace(info, kernels=info.kernels - TENSOR_CORE_KERNELS)
        self._variants: dict[tuple[object, ...], StreamKernel] = {}
        super().__init__(offered, api, calls(api, context, pool=self.ordered_free))
        squares = self._alloc(joined_norms.SQUARES_BYTES, MemoryKind.DEVICE)
        self._squares = Bound(squares, 0, squares.nbytes)

    def check(self, result: Result, operation: str, *, requested: int = 0, free: int = -1) -> Result:
        """See StreamDevice."""
        return check(result, operation, device=self.info.name, requested=requested, free=free)

    def address(self, pointer: Any) -> int:
        """See StreamDevice."""
        return int(pointer)

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """See tuning.py."""
        return tuning.select_tuning(spec, constants, params, tensor_cores=self._tensor_cores, wgmma=self._wgmma)

    def invariant_tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> Tuning:
        """See InvariantDevice."""
        return invariant_tiles.select_tuning(
            spec, constants, params, tensor_cores=self._tensor_cores, wgmma=self._wgmma
        )

    def tunings(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> list[Tuning]:
        """See TunableDevice."""
        return tuning.candidate_tunings(spec, constants, params, tensor_cores=self._tensor_cores, wgmma=self._wgmma)

    def code(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> bytes:
        """See compile.py."""
        return compile.cached_cubin(spec.name, compile.source(spec, constants, tuning), self._architecture)

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> StreamKernel:
        kernel = super()._compile(spec, constants, tuning)
        if kernel.shared:  # without this attribute it may use 48 KiB less its static shared memory
            name = self.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.check(self.api.cuFuncSetAttribute(kernel.function, name, kernel.shared), "load kernel")
        return kernel

    def queue(
        self,
        launch: StreamLaunch,
        *,
        overlaps: bool = False,
        ahead: Bound[StreamBuffer] | None = None,
        after: next_weights.Ahead = next_weights.NOTHING,
    ) -> None:
        """Launch a kernel on the stream, or add it to the graph that is captured.

        overlaps: it may start before the launches before it have ended. ahead: the weights to prefetch. after: those of
        the launch after it, if both are products of next_weights.py.
        """
        kernel = launch.kernel
        slots = [bound.buffer.address + bound.offset for bound in launch.bound]
        slots += struct.unpack(f"<{len(launch.params) // 4}I", launch.params)
        if kernel.spec.name in recording.FETCHING:
            slots += (ahead.buffer.address + ahead.offset, ahead.nbytes) if ahead else (0, 0)
        if next_weights.can_prefetch(launch):
            slots += after
        values = (ctypes.c_uint64 * len(slots))(*slots)  # a 32-bit argument is the lower half of its slot
        first = ctypes.addressof(values)
        maps = tensor_maps.tensor_maps(launch)  # the driver copies arguments before the call returns
        addresses = [*range(first, first + 8 * len(slots), 8), *(int(one.getPtr()) for one in maps)]
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        arguments = ctypes.addressof(pointers)
        if overlaps and self._overlap:
            result = self.api.cuLaunchKernelEx(self._overlapping(kernel, launch.grid), kernel.function, arguments, 0)
        else:
            size = kernel.threads, 1, 1, kernel.shared
            result = self.api.cuLaunchKernel(kernel.function, *launch.grid, *size, self.stream, arguments, 0)
        self.check(result, f"launch {kernel.spec.name}")

    def _overlapping(self, kernel: StreamKernel, grid: Grid) -> Any:
        """Return the configuration of a programmatic dependent launch."""
        flag = self.api.CUlaunchAttribute()
        flag.id = self.api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        flag.value.programmaticStreamSerializationAllowed = 1
        config = self.api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX = kernel.threads
        config.blockDimY = 1
        config.blockDimZ = 1
        config.sharedMemBytes = kernel.shared
        config.hStream = self.stream
        config.attrs = [flag]
        config.numAttrs = 1
        return config

    def _variant(self, kernel: StreamKernel, further: Mapping[str, int]) -> StreamKernel:
        """Return a kernel compiled with further constants; it stays loaded until the device is closed."""
        tuning = replace(kernel.tuning, private={**kernel.tuning.private, **further})
        key = (kernel.spec.name, *sorted(kernel.constants.items()), tuning.key)
        if key not in self._variants:
            self._variants[key] = self._compile(kernel.spec, kernel.constants, tuning)
        return self._variants[key]

    def _queue_all(self, launches: Sequence[StreamLaunch]) -> None:
        launches = joined_norms.shared_norms(launches, self._variant, self._squares)
        launches = recording.joined(launches, self._variant)
        overlaps = recording.may_overlap(launches)
        ahead = recording.weights_ahead(launches)
        after = next_weights.next_weights(launches)
        for launch, overlap, weights, then in zip(recording.apart(launches), overlaps, ahead, after, strict=True):
            self.queue(launch, overlaps=overlap, ahead=weights, after=then)

    def _run_between(self, launches: Sequence[StreamLaunch], events: Sequence[Any]) -> None:
        """Run the launches with an event around each, as one graph so that no time of the host is measured."""

        def mark(event: Any) -> None:
            self.call("EventRecordWithFlags", "time", event, self.stream, EXTERNAL)

        def queue() -> None:
            mark(events[0])
            for launch, ahead, event in zip(launches, recording.weights_ahead(launches), events[1:], strict=True):
                self.queue(launch, ahead=ahead)
                mark(event)

        graph = self.graph_of(queue)
        self.call("GraphLaunch", "time", graph, self.stream)
        self._wait()
        self.call("GraphExecDestroy", "time", graph)

    def _mark(self) -> Any:
        self.select()
        if len(self._marks) < MAX_MARKS:
            self._marks.append(self.call("EventCreate", "create event", DISABLE_TIMING)[0])
        else:
            self._marks.rotate(-1)
        self.call("EventRecord", "peer-copy", self._marks[-1], self.stream)
        return self._marks[-1]

    def _copy_from(
        self,
        other: DriverMethods[Any, Any],
        mark: object,
        source: StreamBuffer,
        source_at: int,
        target: StreamBuffer,
        target_at: int,
        nbytes: int,
    ) -> None:
        assert isinstance(other, CudaDevice)  # the only peers
        self.select()
        if other.info.index not in self._granted:
            self._grant(other)
        self.call("StreamWaitEvent", "peer-copy", self.stream, mark, 0)
        places = target.address + target_at, self._context, source.address + source_at, other._context
        self.call("MemcpyPeerAsync", "peer-copy", *places, nbytes, self.stream)

    def _grant(self, other: CudaDevice) -> None:
        """Get access to a peer's memory, of its pool or of its context."""
        if other.ordered_free:
            access = self.api.CUmemAccessDesc()
            access.location.type = self.api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = self.info.index
            access.flags = self.api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            pool = self.call("DeviceGetDefaultMemPool", "peer-copy", other._handle)[0]
            self.call("MemPoolSetAccess", "peer-copy", pool, [access], 1)
        else:
            result = self.api.cuCtxEnablePeerAccess(other._context, 0)
            if int(result[0]) != PEER_ENABLED:
                self.check(result, "peer-copy")
        self._granted.add(other.info.index)

    def _sensors(self) -> dict[str, float]:
        return nvml.readings(self.info.physical_id)

    def _kernel_resources(self, kernel: StreamKernel) -> dict[str, float]:
        self.select()

        def fact(name: str) -> int:
            code = getattr(self.api.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
            return int(self.call("FuncGetAttribute", "query kernel", code, kernel.function)[0])

        size = kernel.threads, kernel.shared
        blocks = int(self.call("OccupancyMaxActiveBlocksPerMultiprocessor", "query kernel", kernel.function, *size)[0])
        resident_threads = int(self.info.extra["max_threads_per_multiprocessor"])
        return {
            "registers": fact("NUM_REGS"),
            "private_bytes": fact("LOCAL_SIZE_BYTES"),
            "shared_bytes": fact("SHARED_SIZE_BYTES") + kernel.shared,
            "subgroup": int(self.info.extra["warp_size"]),
            "occupancy": blocks * kernel.threads / resident_threads,
        }

    def _close(self) -> None:
        self.calls.select()
        self.calls.free(self._squares.buffer.address, self.stream)
        super()._close()
        for mark in self._marks:
            self.api.cuEventDestroy(mark)
        self.api.cuDevicePrimaryCtxRelease(self._handle)
