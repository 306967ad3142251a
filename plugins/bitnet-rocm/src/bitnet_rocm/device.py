"""The ROCm device: one stream of one GPU, recordings as HIP graphs."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bitnet_core.errors import DeviceNotFoundError, GpuError, GpuTimeoutError
from bitnet_core.hal import DeviceType, MemoryKind, Tuning
from bitnet_core.hal.base import BaseDevice, Launch, Recorded
from bitnet_core.hal.waiting import ready_within
from bitnet_core.kernels.spec import KernelSpec

from bitnet_rocm import compile, recording, tuning
from bitnet_rocm.describe import device_infos
from bitnet_rocm.driver import driver
from bitnet_rocm.errors import NOT_READY, check
from bitnet_rocm.memory import PinnedCopies, RocmBuffer

FETCHING = frozenset({"norm_matmul", "norm_matmul_glu", "rope_attention"})
"""Kernels whose last arguments are what NVIDIA's fetch for a later one: an address and its bytes, 0 here."""
MAPPED = 2
"""hipHostRegisterMapped: the device can reach the memory."""


@dataclass(eq=False, frozen=True, slots=True)
class RocmKernel:
    """A loaded function with its constants."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    module: Any
    function: Any


class RocmDevice(BaseDevice[RocmBuffer, RocmKernel]):
    """One GPU."""

    def __init__(self, index: int) -> None:
        infos = {info.index: info for info in device_infos()}
        if index not in infos:
            raise DeviceNotFoundError(
                f"there is no device rocm:{index}", backend="rocm", hint="`bitnet devices` lists the GPUs"
            )
        super().__init__(infos[index])
        self._api = driver()
        self._architecture = str(self.info.extra["architecture"])
        self._modules: dict[int, Any] = {}
        self._current()
        self.stream = self.check(self._api.hipStreamCreateWithFlags(1), "open")[0]
        self._copies = PinnedCopies(self)
        self._staging = self._copies.ring()

    def check(self, result: tuple[Any, ...], operation: str, **sizes: int) -> tuple[Any, ...]:
        """The values of a call; raises its error."""
        return check(result, operation, device=self.info.name, **sizes)

    @staticmethod
    def address(pointer: Any) -> int:
        """Of a pointer that hip-python gave."""
        return int(pointer.as_c_void_p().value or 0)

    def _current(self) -> None:
        """Several devices may be open in one thread: what calls the runtime makes its own device current."""
        self.check(self._api.hipSetDevice(self.info.index), "switch device")

    def free_memory(self) -> int:
        """Bytes the runtime reports as free."""
        self._current()
        return int(self.check(self._api.hipMemGetInfo(), "query memory")[0])

    def _alloc(self, nbytes: int, kind: MemoryKind) -> RocmBuffer:
        self._current()
        rounded = -(-nbytes // 16) * 16  # kernels read 16-byte words
        if kind is not MemoryKind.DEVICE:
            host = self.address(self.check(self._api.hipHostMalloc(rounded, 0), "alloc", requested=nbytes)[0])
            ctypes.memset(host, 0, rounded)
            return RocmBuffer(host, nbytes, kind, host)
        result = self._api.hipMalloc(rounded)
        free = 0 if not int(result[0]) else self.free_memory()
        address = self.address(self.check(result, "alloc", requested=nbytes, free=free)[0])
        self.check(self._api.hipMemsetAsync(address, 0, rounded, self.stream), "alloc")
        return RocmBuffer(address, nbytes, kind)

    def _wrap(self, host: memoryview) -> RocmBuffer | None:
        """An APU reads the host's memory; where the runtime does not lend it (a read-only file, say), it is copied."""
        if self.info.type is not DeviceType.INTEGRATED or host.readonly:
            return None
        start = ctypes.addressof((ctypes.c_char * host.nbytes).from_buffer(host))
        self._current()
        try:
            self.check(self._api.hipHostRegister(start, host.nbytes, MAPPED), "wrap")
            address = self.address(self.check(self._api.hipHostGetDevicePointer(start, 0), "wrap")[0])
        except GpuError:
            return None
        return RocmBuffer(address, host.nbytes, MemoryKind.SHARED, start, registered=True)

    def _free(self, buffer: RocmBuffer) -> None:
        self._wait()
        if buffer.registered:
            self.check(self._api.hipHostUnregister(buffer.host), "free")
        elif buffer.kind is MemoryKind.DEVICE:
            self.check(self._api.hipFree(buffer.address), "free")
        else:
            self.check(self._api.hipHostFree(buffer.host), "free")

    def _upload(self, buffer: RocmBuffer, offset: int, source: memoryview) -> None:
        self._current()
        self._staging.upload(buffer, offset, source)

    def _download(self, buffer: RocmBuffer, offset: int, target: memoryview) -> None:
        self._wait()  # the copy itself waits without a bound
        to = ctypes.addressof((ctypes.c_char * target.nbytes).from_buffer(target))
        kind = self._api.hipMemcpyKind.hipMemcpyDeviceToHost
        self.check(self._api.hipMemcpy(to, buffer.address + offset, target.nbytes, kind), "download")

    def _copy(self, source: RocmBuffer, source_at: int, target: RocmBuffer, target_at: int, nbytes: int) -> None:
        self._current()
        to, start = target.address + target_at, source.address + source_at
        kind = self._api.hipMemcpyKind.hipMemcpyDeviceToDevice
        self.check(self._api.hipMemcpyAsync(to, start, nbytes, kind, self.stream), "copy")

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """See tuning.py."""
        return tuning.choose(spec, constants, params, int(self.info.extra["multiprocessor_count"]))

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> RocmKernel:
        self._current()
        source = compile.source(spec, constants, tuning)
        code = compile.cached_code(spec.name, source, self._architecture, self.info.driver)
        module = self.check(self._api.hipModuleLoadData(code), "load kernel")[0]
        function = self.check(self._api.hipModuleGetFunction(module, spec.name.encode()), "load kernel")[0]
        kernel = RocmKernel(spec, dict(constants), tuning, module, function)
        self._modules[id(kernel)] = module
        return kernel

    def _release(self, kernel: RocmKernel) -> None:
        self._wait()
        del self._modules[id(kernel)]
        self.check(self._api.hipModuleUnload(kernel.module), "release")

    def _run(self, launch: Launch[RocmBuffer, RocmKernel]) -> None:
        self._current()
        self.queue(launch)

    def queue(self, launch: Launch[RocmBuffer, RocmKernel]) -> None:
        """Queue a launch on the stream (which may be capturing)."""
        kernel = launch.kernel
        arguments: list[Any] = [ctypes.c_void_p(bound.buffer.address + bound.offset) for bound in launch.bound]
        arguments += map(ctypes.c_uint32, struct.unpack(f"<{len(launch.params) // 4}I", launch.params))
        if kernel.spec.name in FETCHING:
            arguments += [ctypes.c_void_p(0), ctypes.c_uint32(0)]
        size = kernel.tuning.private["GROUP"], 1, 1, 0
        launched = self._api.hipModuleLaunchKernel(
            kernel.function, *launch.grid, *size, self.stream, None, tuple(arguments)
        )
        self.check(launched, f"launch {kernel.spec.name}")

    def _record(self, recorded: Recorded[RocmBuffer, RocmKernel]) -> None:
        self._current()
        recorded.native = recording.graph_of(self, recorded.launches)

    def _replay(self, recorded: Recorded[RocmBuffer, RocmKernel]) -> None:
        if recorded.native is None:
            super()._replay(recorded)
            return
        self._current()
        self.check(self._api.hipGraphLaunch(recorded.native, self.stream), "replay")

    def _timings(self, recorded: Recorded[RocmBuffer, RocmKernel]) -> list[float]:
        self._current()
        return recording.seconds_of(self, recorded.launches)

    def _forget(self, recorded: Recorded[RocmBuffer, RocmKernel]) -> None:
        if recorded.native is not None:
            self._wait()
            self.check(self._api.hipGraphExecDestroy(recorded.native), "free recording")

    def _wait(self) -> None:
        self._current()
        self.until(lambda: self._api.hipStreamQuery(self.stream), "synchronize")
        self._staging.drained()

    def until(self, query: Callable[[], tuple[Any, ...]], operation: str) -> None:
        """Ask until it is ready: the runtime's own waits have no bound. GpuTimeoutError after `timeout` seconds."""
        if not ready_within(self.timeout, lambda: int(query()[0]) != NOT_READY):
            raise GpuTimeoutError(
                f"the GPU did not finish within {self.timeout:g} seconds",
                backend="rocm",
                device=self.info.name,
                operation=operation,
                hint="BITNET_GPU_TIMEOUT allows more; check `rocm-smi` for other work on the GPU",
            )
        self.check(query(), operation)

    def _close(self) -> None:
        self._api.hipSetDevice(self.info.index)
        for module in self._modules.values():
            self._api.hipModuleUnload(module)
        self._copies.close()
        self._api.hipStreamDestroy(self.stream)
