"""The OpenCL device: one context, one in-order queue."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np
import pyopencl as cl
from bitnet_core.errors import DeviceLostError, OutOfMemoryError, UnsupportedError
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

from bitnet_opencl.compiler import BinaryCache, Compiler
from bitnet_opencl.discovery import nvidia_capability, query
from bitnet_opencl.errors import BACKEND, check, checked
from bitnet_opencl.layer import LAYER, decoder_layer
from bitnet_opencl.layer import SPEC as LAYER_SPEC
from bitnet_opencl.memory import DataPath, OpenCLBuffer
from bitnet_opencl.recording import Enqueuer, Launch, OpenCLKernel, OpenCLRecording
from bitnet_opencl.sources import EXTRA_ARGUMENTS, kernel_source, validate_kernel_source, with_one_struct
from bitnet_opencl.tuning import VARIANTS, DeviceClass, Profile, tune

_PAGE, _LINE = 4096, 64
"""Integrated GPUs use host memory in place from page to whole cache line."""
_ZEROS = np.zeros(16, dtype=np.uint8)


class OpenCLDevice:
    """See bitnet_core.hal.device.Device."""

    def __init__(
        self,
        device: cl.Device,
        info: DeviceInfo,
        *,
        profile: Profile | None = None,
    ) -> None:
        self.info = info
        self._device = device
        self._abilities = abilities(device)
        self.profile = profile or default_profile(device, info, self._abilities)
        with checked("open", device=info.name):
            self._context = cl.Context([device])
            self._queue = cl.CommandQueue(self._context, device)
        self._compiler = Compiler(self._context, device, BinaryCache())
        self._enqueuer = Enqueuer(self._queue)
        self._path = DataPath.select(info.transfer, self._queue, self._context)
        self._buffers: set[OpenCLBuffer] = set()
        self._recording: OpenCLRecording | None = None
        self._layer_kernels: dict[tuple[tuple[str, int], ...], OpenCLKernel] = {}
        self._lost = False

    @contextmanager
    def _doing(self, operation: str, requested: int = 0) -> Iterator[None]:
        if self._lost:
            raise DeviceLostError("the device was lost", backend=BACKEND, device=self.info.name, operation=operation)
        try:
            with checked(operation, device=self.info.name, requested=requested, free=self._free if requested else -1):
                yield
        except DeviceLostError:
            self._lost = True
            raise

    @property
    def _free(self) -> int:
        kibibytes = query(self._device, "global_free_memory_amd", None)
        return int(kibibytes[0]) * 1024 if kibibytes else -1

    def free_memory(self) -> int:
        """AMD's drivers tell; OpenCL itself has no such question."""
        return self._free

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> OpenCLBuffer:
        """A zeroed cl_mem; HOST and SHARED memory is pinned by the driver (CL_MEM_ALLOC_HOST_PTR)."""
        if nbytes <= 0:
            raise ValueError(f"a buffer needs at least one byte, not {nbytes}")
        if kind is MemoryKind.SHARED and self.info.transfer is not TransferMode.UNIFIED:
            raise UnsupportedError(
                "host and device do not share memory", backend=BACKEND, device=self.info.name, operation="alloc"
            )
        if nbytes > self.info.max_allocation:
            raise OutOfMemoryError(
                f"cannot allocate {nbytes:,} bytes, the driver's largest buffer has {self.info.max_allocation:,}",
                requested=nbytes,
                free=self._free,
                backend=BACKEND,
                device=self.info.name,
                hint="Use a smaller context, or a device with larger buffers",
            )
        pinned = 0 if kind is MemoryKind.DEVICE else cl.mem_flags.ALLOC_HOST_PTR
        with self._doing("alloc", requested=nbytes):
            return self._keep(OpenCLBuffer(self._zeroed(nbytes, pinned), nbytes, kind))

    def _zeroed(self, nbytes: int, flags: int) -> cl.Buffer:
        size = -(-nbytes // _ZEROS.nbytes) * _ZEROS.nbytes
        handle = cl.Buffer(self._context, cl.mem_flags.READ_WRITE | flags, size)
        cl.enqueue_fill_buffer(self._queue, handle, _ZEROS, 0, size)
        return handle

    def wrap(self, host: memoryview) -> OpenCLBuffer | None:
        """Host memory in place (CL_MEM_USE_HOST_PTR) where the device works in host memory."""
        if self.info.transfer is not TransferMode.UNIFIED or not 0 < host.nbytes <= self.info.max_allocation:
            return None
        data = np.frombuffer(host, dtype=np.uint8)
        if self.info.type is DeviceType.INTEGRATED and (data.ctypes.data % _PAGE or data.nbytes % _LINE):
            return None  # the driver would make a copy
        with self._doing("wrap", requested=host.nbytes):
            handle = cl.Buffer(self._context, cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR, hostbuf=data)
        return self._keep(OpenCLBuffer(handle, host.nbytes, MemoryKind.SHARED))

    def _keep(self, buffer: OpenCLBuffer) -> OpenCLBuffer:
        self._buffers.add(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Release the cl_mem; the driver waits for what still uses it."""
        handle = self._handle(buffer)
        assert isinstance(buffer, OpenCLBuffer)
        self._buffers.remove(buffer)
        buffer.handle = None
        handle.release()

    def _handle(self, buffer: Buffer) -> cl.Buffer:
        if not isinstance(buffer, OpenCLBuffer) or buffer not in self._buffers or buffer.handle is None:
            raise ValueError("this buffer is not, or no longer, one of this device")
        return buffer.handle

    def upload(self, dst: View, src: memoryview) -> None:
        """Copy in by the device's data path."""
        check_transfer("upload", src.nbytes, dst.nbytes)
        handle = self._handle(dst.buffer)
        if src.nbytes:
            with self._doing("upload"):
                self._path.upload(handle, dst.offset, src)

    def download(self, src: View, dst: memoryview) -> None:
        """Copy out and wait."""
        check_transfer("download", src.nbytes, dst.nbytes)
        handle = self._handle(src.buffer)
        if src.nbytes:
            host = np.frombuffer(dst, dtype=np.uint8)
            with self._doing("download"):
                cl.enqueue_copy(self._queue, host, handle, src_offset=src.offset, is_blocking=True)

    def copy(self, src: View, dst: View) -> None:
        """Copy on the device."""
        check_transfer("copy", src.nbytes, dst.nbytes)
        source, target = self._handle(src.buffer), self._handle(dst.buffer)
        if src.nbytes:
            with self._doing("copy"):
                cl.enqueue_copy(
                    self._queue,
                    target,
                    source,
                    src_offset=src.offset,
                    dst_offset=dst.offset,
                    byte_count=src.nbytes,
                )

    def tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> dict[str, int]:
        """Constants for this class of device; see bitnet_opencl.tuning."""
        return tune(self.profile, spec, params)

    def compile(self, spec: KernelSpec, constants: Mapping[str, int]) -> OpenCLKernel:
        """Build the source that `constants` choose, or load it from the cache."""
        if CATALOGUE.get(spec.name) is not spec or not (spec.base or spec.name in self.info.kernels):
            raise UnsupportedError(
                f"there is no kernel {spec.name}", backend=BACKEND, device=self.info.name, operation="compile"
            )
        spec.check_constants(constants)
        entry = spec.name + VARIANTS[constants["VARIANT"]]
        return self._built(spec, constants, entry)

    def _built(self, spec: KernelSpec, constants: Mapping[str, int], entry: str) -> OpenCLKernel:
        source = kernel_source(entry)
        validate_kernel_source(source, len(spec.bindings) + len(spec.params) + EXTRA_ARGUMENTS.get(entry, 0))
        options = [*self._abilities, *(f"-D{name}={value}" for name, value in sorted(constants.items()))]
        program = self._compiler.build(entry, with_one_struct(source), options)
        parts = None
        with self._doing("compile", requested=constants.get("PARTS", 0)):
            if entry in EXTRA_ARGUMENTS:
                parts = self._zeroed(max(constants["PARTS"], 1), 0)
            return OpenCLKernel(
                spec, MappingProxyType(dict(constants)), program, entry, cl.Kernel(program, entry), parts
            )

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """Enqueue now, or keep a kernel object with its arguments while recording."""
        if not isinstance(kernel, OpenCLKernel):
            raise ValueError("this kernel is not one of this device")
        spec = kernel.spec
        check_launch(spec, views, params, self.info, kernel.constants)
        group = kernel.constants["WG"]
        with self._doing(f"launch of {kernel.entry}"):
            if self._recording is not None:
                self._recording.launches.append(self._prepared(kernel, grid, views, params))
                return
            self._set_arguments(kernel.direct, kernel, views, params)
            cl.enqueue_nd_range_kernel(self._queue, kernel.direct, _items(kernel, grid), (group, 1, 1))

    def _prepared(self, kernel: OpenCLKernel, grid: Grid, views: Sequence[View], params: bytes) -> Launch:
        """A kernel object with its arguments."""
        handle = cl.Kernel(kernel.program, kernel.entry)
        items, group = _items(kernel, grid), (kernel.constants["WG"], 1, 1)
        self._set_arguments(handle, kernel, views, params)
        return Launch(kernel, tuple(views), params, handle, items, group, self._enqueuer.prepare(handle, items, group))

    def _set_arguments(self, handle: cl.Kernel, kernel: OpenCLKernel, views: Sequence[View], params: bytes) -> None:
        """Buffers, then offsets and parameters as one struct (see sources.with_one_struct)."""
        for index, view in enumerate(views):
            handle.set_arg(index, self._handle(view.buffer))
        packed = struct.pack(f"={len(views)}Q", *(view.offset for view in views)) + params
        handle.set_arg(len(views), packed + bytes(-len(packed) % 8))
        if kernel.parts is not None:
            handle.set_arg(len(views) + 1, kernel.parts)

    @contextmanager
    def record(self) -> Iterator[OpenCLRecording]:
        """Keep the launches of the block."""
        if self._recording is not None:
            raise ValueError("a recording is already under way")
        self._recording = recording = OpenCLRecording()
        try:
            yield recording
        finally:
            self._recording = None
        with self._doing("record"):
            recording.launches[:] = self._joined(recording.launches)

    def _joined(self, launches: list[Launch]) -> list[Launch]:
        """The launches, with one in place of those of each decoder layer."""
        made: list[Launch] = []
        at = 0
        while at < len(launches):
            layer = decoder_layer(launches[at : at + LAYER], self.profile)
            if layer is None:
                made.append(launches[at])
                at += 1
                continue
            kernel = self._layer_kernel(layer.constants)
            made.append(self._prepared(kernel, (layer.constants["MEMBERS"], 1, 1), layer.views, layer.params))
            at += LAYER
        return made

    def _layer_kernel(self, constants: dict[str, int]) -> OpenCLKernel:
        """One for all layers and recordings: its groups meet in memory that must be as the last launch left it."""
        key = tuple(constants.items())
        if key not in self._layer_kernels:
            self._layer_kernels[key] = self._built(LAYER_SPEC, constants, LAYER_SPEC.name)
        return self._layer_kernels[key]

    def replay(self, recording: Recording) -> None:
        """Enqueue the kept kernels."""
        if not isinstance(recording, OpenCLRecording):
            raise ValueError("this recording is not one of this device")
        with self._doing("replay"):
            for launch in recording.launches:
                if status := launch.enqueue():
                    check(status, f"replay of {launch.source.entry}", device=self.info.name)
            self._queue.flush()

    def timings(self, recording: OpenCLRecording) -> list[tuple[str, float]]:
        """Replay once on a profiling queue; seconds of every kernel by the device's clock.

        NVIDIA's driver counts about 5 us of its own for each.
        """
        with self._doing("timings"):
            self._queue.finish()
            properties = cl.command_queue_properties.PROFILING_ENABLE
            queue = cl.CommandQueue(self._context, self._device, properties=properties)
            events = [
                (launch.source.spec.name, cl.enqueue_nd_range_kernel(queue, launch.kernel, launch.items, launch.group))
                for launch in recording.launches
            ]
            queue.finish()
            return [(name, (event.profile.end - event.profile.start) * 1e-9) for name, event in events]

    def synchronize(self) -> None:
        """Wait for the queue."""
        with self._doing("synchronize"):
            self._queue.finish()

    def close(self) -> None:
        """Release every buffer."""
        self._path.close()
        for buffer in self._buffers:
            if buffer.handle is not None:
                buffer.handle.release()
            buffer.handle = None
        self._buffers.clear()


def _items(kernel: OpenCLKernel, grid: Grid) -> tuple[int, int, int]:
    """The global size."""
    return grid[0] * kernel.constants["WG"], grid[1], grid[2] * kernel.constants.get("SPLITS", 1)


def abilities(device: cl.Device) -> list[str]:
    """Build options: the language version and what the prelude may use on this device."""
    extensions = device.extensions.split()
    options = []
    if query(device, "single_fp_config", 0) & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    if nvidia_capability(device, extensions) >= (6, 1):  # dp4a
        return ["-cl-std=CL1.2", *options, "-DHAS_PTX=1"]
    if "cl_khr_integer_dot_product" in extensions:
        options.append("-DHAS_KHR_DOT=1")
    elif "cl_arm_integer_dot_product_accumulate_int8" in extensions:
        options.append("-DHAS_ARM_DOT=1")
    if "cl_khr_subgroup_shuffle" in extensions:
        options.append("-DHAS_SHUFFLE=1")
    modern = device.version.startswith("OpenCL 3") and ("-DHAS_KHR_DOT=1" in options or "-DHAS_SHUFFLE=1" in options)
    return ["-cl-std=CL3.0" if modern else "-cl-std=CL1.2", *options]


def default_profile(device: cl.Device, info: DeviceInfo, options: Sequence[str]) -> Profile:
    """The tuning class of a device; with shuffles, only as many lanes as its smallest subgroups have."""
    classes = {DeviceType.SOFTWARE: DeviceClass.CPU, DeviceType.INTEGRATED: DeviceClass.INTEGRATED}
    wide = "-DHAS_SHUFFLE=1" not in options or "amd" in device.vendor.lower()
    ptx = nvidia_capability(device, device.extensions.split()) >= (8, 0)
    return Profile(
        classes.get(info.type, DeviceClass.DISCRETE),
        max_group=device.max_work_group_size,
        lanes=32 if wide else 8,
        units=device.max_compute_units,
        ptx=ptx,
        members=device.max_compute_units if ptx and device.max_work_group_size >= 512 else 0,
    )
