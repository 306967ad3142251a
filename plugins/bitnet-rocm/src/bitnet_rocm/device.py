"""The ROCm device: one stream of one GPU, recordings as HIP graphs."""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Mapping
from typing import Any

from bitnet_hal.driver.by_index import info_by_index
from bitnet_hal.errors import GpuError, LaunchError, UnsupportedError
from bitnet_hal.families.stream import Calls, Result, StreamBuffer, StreamDevice, StreamLaunch, StreamRecorded
from bitnet_hal.kernels.catalogue import ROTATED_KERNELS
from bitnet_hal.plugin import DeviceType, KernelSpec, MemoryKind, Tuning

from bitnet_rocm import compile, tuning
from bitnet_rocm.describe import device_infos
from bitnet_rocm.driver import driver
from bitnet_rocm.errors import check

log = logging.getLogger(__name__)

FETCHING = ROTATED_KERNELS | {"norm_matmul", "norm_matmul_glu", "rope_attention"}
"""Kernels whose last arguments are what NVIDIA's fetch for a later one: an address and its bytes, 0 here."""
MAPPED = 2
"""hipHostRegisterMapped: the device can reach the memory."""


def calls(api: Any, ordinal: int) -> Calls:
    """Without a pool of memory: buffers live as long as a model, and hipMalloc rounds little up (docs/amd.md)."""
    kinds, mode = api.hipMemcpyKind, api.hipStreamCaptureMode.hipStreamCaptureModeRelaxed
    return Calls(
        select=lambda: api.hipSetDevice(ordinal),
        create_stream=lambda: api.hipStreamCreateWithFlags(1),
        create_event=api.hipEventCreate,
        capture=lambda stream: api.hipStreamBeginCapture(stream, mode),
        instantiate=lambda graph: api.hipGraphInstantiateWithFlags(graph, 0),
        alloc=lambda nbytes, _: api.hipMalloc(nbytes),
        free=lambda address, _: api.hipFree(address),
        alloc_host=lambda nbytes: api.hipHostMalloc(nbytes, 0),
        free_host=api.hipHostFree,
        fill=api.hipMemsetAsync,
        upload=lambda to, start, n, stream: api.hipMemcpyAsync(to, start, n, kinds.hipMemcpyHostToDevice, stream),
        download=lambda to, start, n: api.hipMemcpy(to, start, n, kinds.hipMemcpyDeviceToHost),
        copy=lambda to, start, n, stream: api.hipMemcpyAsync(to, start, n, kinds.hipMemcpyDeviceToDevice, stream),
    )


class RocmDevice(StreamDevice):
    """One GPU."""

    prefix = "hip"

    def __init__(self, index: int) -> None:
        info = info_by_index(device_infos(), index, "rocm")
        self._architecture = str(info.extra["architecture"])
        super().__init__(info, driver(), calls(driver(), index))

    def check(self, result: Result, operation: str, *, requested: int = 0, free: int = -1) -> Result:
        """See StreamDevice."""
        return check(result, operation, device=self.info.name, requested=requested, free=free)

    def address(self, pointer: Any) -> int:
        """See StreamDevice."""
        return int(pointer.as_c_void_p().value or 0)

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """See tuning.py."""
        units = int(self.info.extra["multiprocessor_count"])
        return tuning.select_tuning(spec, constants, params, units, self._architecture)

    def code(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> bytes:
        """See compile.py."""
        source = compile.source(spec, constants, tuning)
        runtime = str(self.info.extra["runtime_version"])
        return compile.cached_code(spec.name, source, self._architecture, runtime)

    def _wrap(self, host: memoryview) -> StreamBuffer | None:
        """An APU reads the host's memory; where the runtime does not lend it (a read-only file, say), it is copied."""
        if self.info.type is not DeviceType.INTEGRATED or host.readonly:
            return None
        start = ctypes.addressof((ctypes.c_char * host.nbytes).from_buffer(host))
        self.select()
        try:
            self.call("HostRegister", "wrap", start, host.nbytes, MAPPED)
            address = self.address(self.call("HostGetDevicePointer", "wrap", start, 0)[0])
        except GpuError:
            return None
        return StreamBuffer(address, host.nbytes, MemoryKind.SHARED, start, borrowed=True)

    def _free(self, buffer: StreamBuffer) -> None:
        if buffer.borrowed:
            self._wait()
            self.call("HostUnregister", "free", buffer.host)
        else:
            super()._free(buffer)

    def queue(self, launch: StreamLaunch) -> None:
        """See StreamDevice."""
        kernel = launch.kernel
        arguments: list[Any] = [ctypes.c_void_p(bound.buffer.address + bound.offset) for bound in launch.bound]
        arguments += map(ctypes.c_uint32, struct.unpack(f"<{len(launch.params) // 4}I", launch.params))
        if kernel.spec.name in FETCHING:
            arguments += [ctypes.c_void_p(0), ctypes.c_uint32(0)]
        size = *launch.grid, kernel.threads, 1, 1, 0
        result = self.api.hipModuleLaunchKernel(kernel.function, *size, self.stream, None, tuple(arguments))
        self.check(result, f"launch {kernel.spec.name}")

    def _record(self, recorded: StreamRecorded) -> None:
        try:
            super()._record(recorded)
        except (LaunchError, UnsupportedError, RuntimeError) as exc:  # RuntimeError: the symbol is missing
            log.info("launches are repeated one by one, since a graph failed: %s", exc)
