"""Base class of devices with CUDA's programming model (CUDA, HIP): one stream, events, graphs by stream capture.

The functions of both drivers differ by a prefix; `Calls` holds those that differ in name or arguments.
"""

from __future__ import annotations

import ctypes
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from bitnet_hal.base import BaseDevice, BoundLaunch, LaunchRecording
from bitnet_hal.device import DeviceInfo, MemoryKind, Tuning
from bitnet_hal.driver.staging import StagingRing
from bitnet_hal.families.pinned import PinnedSlots, host_view
from bitnet_hal.features import MAX_ASYNC_READ
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.launches import CompiledKernel
from bitnet_hal.rounding import round_up

STAGING = 16 << 20
"""Bytes of each of the two page-locked upload slots: one is filled while the other is copied."""
NOT_READY = 600
"""The status "not ready" of both drivers."""

Result = tuple[Any, ...]
"""The result of a driver call: its status, then its values."""


@dataclass(eq=False, slots=True)
class StreamBuffer:
    """A buffer. address: of the device. host: the host's address, 0 for memory of the device."""

    address: int
    nbytes: int
    kind: MemoryKind
    host: int = 0
    borrowed: bool = False  # host memory that the caller owns


@dataclass(eq=False, frozen=True, slots=True)
class StreamKernel(CompiledKernel):
    """A loaded function with its spec, constants and tuning."""

    module: Any
    function: Any

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.tuning.private["GROUP"]

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory per block."""
        return self.tuning.private.get("SHARED", 0)


StreamLaunch = BoundLaunch[StreamBuffer, StreamKernel]
StreamRecorded = LaunchRecording[StreamBuffer, StreamKernel]


@dataclass(frozen=True, slots=True)
class Calls:
    """Driver calls that CUDA and HIP name differently. Arguments are in the order of their own functions."""

    select: Callable[[], Result]  # make the device current in the calling thread
    create_stream: Callable[[], Result]
    create_event: Callable[[], Result]
    capture: Callable[[Any], Result]  # begin capture on a stream
    instantiate: Callable[[Any], Result]
    alloc: Callable[[int, Any], Result]  # bytes, stream
    free: Callable[[int, Any], Result]
    alloc_host: Callable[[int], Result]
    free_host: Callable[[int], Result]
    fill: Callable[[int, int, int, Any], Result]
    upload: Callable[[int, int, int, Any], Result]  # to, from, bytes, stream
    download: Callable[[int, int, int], Result]
    copy: Callable[[int, int, int, Any], Result]


class StreamDevice(BaseDevice[StreamBuffer, StreamKernel]):
    """A device with one stream. prefix: first letters of the names of the driver's functions.

    ordered_free: `Calls.free` is ordered by the stream and needs no wait.
    """

    prefix: ClassVar[str]
    ordered_free = False

    def __init__(self, info: DeviceInfo, api: Any, calls: Calls) -> None:
        super().__init__(info)
        self.api = api
        self.calls = calls
        self.select()
        self.stream = self.check(calls.create_stream(), "open")[0]
        self._modules: dict[int, Any] = {}
        self._compiler: ThreadPoolExecutor | None = None
        self._codes: dict[tuple[object, ...], Future[bytes]] = {}  # of kernels that are compiled ahead
        self._uploads = PinnedSlots(self, STAGING, "upload")
        self._readbacks = PinnedSlots(self, MAX_ASYNC_READ, "async-readback")
        self._staging = StagingRing([host_view(slot, STAGING) for slot in self._uploads.slots], self._uploads)

    # Abstract methods, beside `tuning`.

    @abstractmethod
    def check(self, result: Result, operation: str, *, requested: int = 0, free: int = -1) -> Result:
        """Return the values of a call's result, or raise the error of its status. requested, free: bytes."""

    @abstractmethod
    def address(self, pointer: Any) -> int:
        """Convert a pointer of the driver's Python module to an address."""

    @abstractmethod
    def code(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> bytes:
        """Return the device code of a kernel for this GPU."""

    @abstractmethod
    def queue(self, launch: StreamLaunch) -> None:
        """Queue a launch on the stream, possibly during capture."""

    # A method that a plugin may override.

    def _queue_all(self, launches: Sequence[StreamLaunch]) -> None:
        """Queue launches during capture."""
        for launch in launches:
            self.queue(launch)

    # The implementation.

    def call(self, name: str, operation: str, *arguments: Any) -> Result:
        """Call the driver's function `prefix + name` and return its values."""
        return self.check(getattr(self.api, self.prefix + name)(*arguments), operation)

    def select(self) -> None:
        """Make this device current: a thread may use several devices."""
        self.check(self.calls.select(), "select device")

    def free_memory(self) -> int:
        """Wait for pending frees and return the bytes that the driver reports as free."""
        self._wait()
        return int(self.call("MemGetInfo", "query memory")[0])

    def pinned(self, nbytes: int) -> int:
        """Allocate page-locked memory and return its address."""
        return self.address(self.check(self.calls.alloc_host(nbytes), "alloc", requested=nbytes)[0])

    def _alloc(self, nbytes: int, kind: MemoryKind) -> StreamBuffer:
        self.select()
        rounded = round_up(nbytes, 16)  # kernels read 16-byte words
        if kind is not MemoryKind.DEVICE:
            host = self.pinned(rounded)
            ctypes.memset(host, 0, rounded)
            return StreamBuffer(host, nbytes, kind, host)
        result = self.calls.alloc(rounded, self.stream)
        free = int(self.call("MemGetInfo", "query memory")[0]) if int(result[0]) else 0
        address = self.address(self.check(result, "alloc", requested=nbytes, free=free)[0])
        self.check(self.calls.fill(address, 0, rounded, self.stream), "alloc")
        return StreamBuffer(address, nbytes, kind)

    def _free(self, buffer: StreamBuffer) -> None:
        self.select()
        if buffer.host or not self.ordered_free:
            self._wait()
        if buffer.host:
            self.check(self.calls.free_host(buffer.host), "free")
        else:
            self.check(self.calls.free(buffer.address, self.stream), "free")

    def _upload(self, buffer: StreamBuffer, offset: int, source: memoryview) -> None:
        self.select()
        self._staging.upload(buffer, offset, source)

    def _download(self, buffer: StreamBuffer, offset: int, target: memoryview) -> None:
        self._wait()  # the copy's own wait is unbounded
        to = ctypes.addressof((ctypes.c_char * target.nbytes).from_buffer(target))
        self.check(self.calls.download(to, buffer.address + offset, target.nbytes), "download")

    def _read_async(self, buffer: StreamBuffer, offset: int, nbytes: int) -> Callable[[memoryview], None]:
        self.select()
        return self._readbacks.read_async(buffer.address + offset, nbytes)

    def _copy(self, source: StreamBuffer, source_at: int, target: StreamBuffer, target_at: int, nbytes: int) -> None:
        self.select()
        to = target.address + target_at
        start = source.address + source_at
        self.check(self.calls.copy(to, start, nbytes, self.stream), "copy")

    def _compile_ahead(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> None:
        if self._compiler is None:
            self._compiler = ThreadPoolExecutor(os.cpu_count(), "compiler")
        key = _kernel_key(spec, constants, tuning)
        if key not in self._codes:
            self._codes[key] = self._compiler.submit(self.code, spec, constants, tuning)

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> StreamKernel:
        self.select()
        ahead = self._codes.pop(_kernel_key(spec, constants, tuning), None)
        code = self.code(spec, constants, tuning) if ahead is None else ahead.result()
        module = self.call("ModuleLoadData", "load kernel", code)[0]
        function = self.call("ModuleGetFunction", "load kernel", module, spec.name.encode())[0]
        kernel = StreamKernel(spec, dict(constants), tuning, module, function)
        self._modules[id(kernel)] = module
        return kernel

    def _release(self, kernel: StreamKernel) -> None:
        self._wait()
        del self._modules[id(kernel)]
        self.call("ModuleUnload", "release", kernel.module)

    def _run(self, launch: StreamLaunch) -> None:
        self.select()
        self.queue(launch)

    def _record(self, recorded: StreamRecorded) -> None:
        self.select()
        recorded.native = self.graph_of(lambda: self._queue_all(recorded.launches))

    def graph_of(self, queue: Callable[[], None]) -> Any:
        """Capture the work that `queue` queues and return an executable graph."""
        self.check(self.calls.capture(self.stream), "record")
        try:
            queue()
        finally:
            graph = self.call("StreamEndCapture", "record", self.stream)[0]
        try:
            return self.check(self.calls.instantiate(graph), "record")[0]
        finally:
            self.call("GraphDestroy", "record", graph)

    def _replay_many(self, recorded: StreamRecorded, times: int) -> None:
        if recorded.native is None:  # the driver has no graphs
            super()._replay_many(recorded, times)
            return
        self.select()
        for _ in range(times):
            self.call("GraphLaunch", "replay", recorded.native, self.stream)

    def _forget(self, recorded: StreamRecorded) -> None:
        if recorded.native is not None:
            self._wait()
            self.call("GraphExecDestroy", "free recording", recorded.native)

    def _timings(self, recorded: StreamRecorded) -> list[float]:
        self.select()
        events = [self.check(self.calls.create_event(), "time")[0] for _ in range(len(recorded.launches) + 1)]
        try:
            self._run_between(recorded.launches, events)
            self._wait()
            return [1e-3 * float(self.call("EventElapsedTime", "time", a, b)[0]) for a, b in pairwise(events)]
        finally:
            for event in events:
                self.call("EventDestroy", "time", event)

    def _run_between(self, launches: Sequence[StreamLaunch], events: Sequence[Any]) -> None:
        """Queue launches once, with the first event before them and one after each."""
        self.call("EventRecord", "time", events[0], self.stream)
        for launch, event in zip(launches, events[1:], strict=True):
            self.queue(launch)
            self.call("EventRecord", "time", event, self.stream)

    def _wait(self) -> None:
        self.select()
        self.until("StreamQuery", self.stream, "synchronize")
        self._staging.drained()

    def until(self, query: str, handle: Any, operation: str) -> None:
        """Poll until a stream or event is ready. Raises GpuTimeoutError after `timeout` seconds."""
        ask = getattr(self.api, self.prefix + query)
        self._until(lambda: int(ask(handle)[0]) != NOT_READY, operation)
        self.check(ask(handle), operation)

    def _close(self) -> None:
        """Free everything; calls that a lost device refuses are ignored."""
        if self._compiler is not None:
            self._compiler.shutdown(wait=False, cancel_futures=True)
        self.calls.select()
        for module in self._modules.values():
            getattr(self.api, f"{self.prefix}ModuleUnload")(module)
        self._uploads.close()
        self._readbacks.close()
        getattr(self.api, f"{self.prefix}StreamDestroy")(self.stream)


def _kernel_key(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> tuple[object, ...]:
    return (spec.name, *sorted(constants.items()), tuning.key)
