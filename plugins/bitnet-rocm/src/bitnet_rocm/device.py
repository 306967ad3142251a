"""The ROCm device: one stream of one GPU, recordings as HIP graphs."""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Mapping
from typing import Any

from bitnet_hal.errors import GpuError, LaunchError, UnsupportedError
from bitnet_hal.families.stream import Calls, Result, StreamBuffer, StreamDevice, StreamLaunch, StreamRecorded
from bitnet_hal.kernels.catalogue import ROTATED_KERNELS
from bitnet_hal.plugin import DeviceInfo, DeviceType, KernelSpec, MemoryKind, Tuning

from bitnet_rocm import compile, hwmon, tuning
from bitnet_rocm.driver import driver
from bitnet_rocm.errors import check
from bitnet_rocm.tuning import WAVE

log = logging.getLogger(__name__)

FETCHING = ROTATED_KERNELS | {"norm_matmul", "norm_matmul_glu", "rope_attention"}
"""Kernels with two last arguments for prefetching on NVIDIA, an address and a number of bytes; both are 0 here."""
MAPPED = 2
"""hipHostRegisterMapped: the device can access the memory."""


def calls(api: Any, ordinal: int) -> Calls:
    """Return the runtime's functions for StreamDevice.

    There is no memory pool: buffers live as long as a model, and hipMalloc rounds sizes up only a little (docs/amd.md).
    """
    kinds = api.hipMemcpyKind
    mode = api.hipStreamCaptureMode.hipStreamCaptureModeRelaxed
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
    """An AMD GPU with one stream; recordings are HIP graphs."""

    prefix = "hip"

    def __init__(self, info: DeviceInfo) -> None:
        self._architecture = str(info.extra["architecture"])
        super().__init__(info, driver(), calls(driver(), info.index))

    def check(self, result: Result, operation: str, *, requested: int = 0, free: int = -1) -> Result:
        """See StreamDevice."""
        return check(result, operation, device=self.info.name, requested=requested, free=free)

    def address(self, pointer: Any) -> int:
        """See StreamDevice."""
        return int(pointer.as_c_void_p().value or 0)

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """Return the tuning of one launch; see `bitnet_rocm.tuning`."""
        units = int(self.info.extra["multiprocessor_count"])
        return tuning.select_tuning(spec, constants, params, units, self._architecture)

    def tunings(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> list[Tuning]:
        """See TunableDevice."""
        units = int(self.info.extra["multiprocessor_count"])
        return tuning.candidate_tunings(spec, constants, params, units, self._architecture)

    def code(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> bytes:
        """Return the code object of a kernel; see `bitnet_rocm.compile`."""
        source = compile.source(spec, constants, tuning)
        runtime = str(self.info.extra["runtime_version"])
        return compile.cached_code(spec.name, source, self._architecture, runtime, tuning.private.get(WAVE, 0))

    def _wrap(self, host: memoryview) -> StreamBuffer | None:
        """Map host memory to an APU. Returns None if the runtime does not map it, such as a read-only file."""
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

    def _sensors(self) -> dict[str, float]:
        return hwmon.readings(self.info.physical_id)

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
