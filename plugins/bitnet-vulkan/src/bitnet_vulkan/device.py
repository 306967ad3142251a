"""The Vulkan device: the HAL over one logical device and one compute queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bitnet_core.errors import DeviceNotFoundError
from bitnet_core.hal import Buffer, Grid, Kernel, MemoryKind, Recording, View
from bitnet_core.hal.checks import check_launch, check_transfer
from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.spec import KernelSpec

from bitnet_vulkan import tuning
from bitnet_vulkan.binding import Handle, ffi, lib, make
from bitnet_vulkan.descriptors import Descriptors
from bitnet_vulkan.dispatch import Dispatch, timed
from bitnet_vulkan.errors import Stage, check
from bitnet_vulkan.fusion import fuse
from bitnet_vulkan.hazards import Range
from bitnet_vulkan.host_memory import import_host, shares_memory
from bitnet_vulkan.instance import Instance, PhysicalDevice, enabled_extensions
from bitnet_vulkan.layer import Launch
from bitnet_vulkan.memory import Allocator, BufferState, BufferUsage, VulkanBuffer
from bitnet_vulkan.pipelines import SCRATCH_AT, Pipelines, Source, VulkanKernel, split_bytes
from bitnet_vulkan.queue import Commands, Queue, submit_info
from bitnet_vulkan.transfer import Transfers

_USAGES = {
    MemoryKind.DEVICE: BufferUsage.DEVICE_LOCAL,
    MemoryKind.HOST: BufferUsage.STAGING,
    MemoryKind.SHARED: BufferUsage.DEVICE_LOCAL | BufferUsage.STAGING,
}


class VulkanRecording:
    """A primary command buffer, resubmitted by each replay."""

    def __init__(self, device: VulkanDevice, commands: Commands) -> None:
        self._device = device
        self.commands: Commands | None = commands
        self.submit = submit_info(commands)
        self.launches: list[Launch] = []
        self.dispatches: list[Dispatch] = []  # what became of them

    def close(self) -> None:
        """Free the command buffer once the device is done with it."""
        if self.commands is not None:
            commands, self.commands = self.commands, None
            self._device.forget(commands)


class VulkanDevice:
    """One logical device; `validate` as for Instance."""

    def __init__(self, index: int, validate: bool | None = None) -> None:
        self._closed = False
        self._instance = Instance(validate)
        try:
            self._physical = self._pick(index)
            self.info = self._physical.info
            self._handle = self._create()
        except Exception:
            self._instance.close()
            raise
        family, copies = self._physical.queue_family, self._physical.copy_family
        self._copies = None if copies is None else Queue(self._handle, self._physical, copies)
        self._queue = Queue(self._handle, self._physical, family, after=self._copies)
        self._allocator = Allocator(self._handle, self._physical)
        self._pipelines = Pipelines(self._handle, self._physical)
        self._descriptors = Descriptors(self._handle, self.info.name)
        self._transfers = Transfers(self._allocator, self._queue, self._copies)
        self._buffers: set[VulkanBuffer] = set()
        self._recording: VulkanRecording | None = None
        self._fused: dict[tuple[str, tuple[tuple[str, int], ...]], VulkanKernel] = {}
        self._scratch: dict[Source, tuple[VulkanBuffer, VulkanBuffer]] = {}

    def _pick(self, index: int) -> PhysicalDevice:
        devices = self._instance.physical_devices()
        if not 0 <= index < len(devices):
            raise DeviceNotFoundError(
                f"there is no device vulkan:{index}",
                backend="vulkan",
                hint=f"Use vulkan:0{f'..{len(devices) - 1}' if len(devices) > 1 else ''}; `bitnet devices` lists them",
            )
        return devices[index]

    def _create(self) -> Handle:
        chain = self._physical.features.chain()
        extensions = enabled_extensions(self._physical)
        priorities = ffi().new("float[]", [1.0])
        queues = [
            make("VkDeviceQueueCreateInfo", queueFamilyIndex=family, queueCount=1, pQueuePriorities=priorities)[0]
            for family in (self._physical.queue_family, self._physical.copy_family)
            if family is not None
        ]
        create = make(
            "VkDeviceCreateInfo",
            pNext=chain,
            queueCreateInfoCount=len(queues),
            pQueueCreateInfos=queues,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=extensions,
        )
        handle = ffi().new("VkDevice *")
        status = lib().vkCreateDevice(self._physical.handle, create, ffi().NULL, handle)
        check(status, Stage.DEVICE_CREATION, device=self.info.name)
        return handle[0]

    def free_memory(self) -> int:
        """Bytes of device-local memory left."""
        return self._allocator.free_bytes()

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> VulkanBuffer:
        """A zero-filled buffer."""
        if nbytes <= 0:
            raise ValueError(f"a buffer needs at least one byte, not {nbytes}")
        buffer = self._allocator.allocate(nbytes, kind, _USAGES[kind])
        self._buffers.add(buffer)
        self._transfers.zero(buffer)
        buffer.enter(BufferState.IN_USE)
        return buffer

    def wrap(self, host: memoryview) -> VulkanBuffer | None:
        """Host memory in place, where the device shares it."""
        if not host.nbytes or not shares_memory(self._physical):
            return None
        buffer = import_host(self._handle, self._physical, host.cast("B"))
        if buffer is not None:
            self._allocator.adopt(buffer)
            self._buffers.add(buffer)
        return buffer

    def _own(self, buffer: Buffer) -> VulkanBuffer:
        if not isinstance(buffer, VulkanBuffer) or buffer not in self._buffers:
            raise ValueError("this buffer is not, or no longer, one of this device")
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Wait until the device is done with the buffer, then free it."""
        own = self._own(buffer)
        self._queue.wait()
        if self._copies is not None:
            self._copies.wait()
        self._descriptors.forget(own)
        self._buffers.remove(own)
        self._allocator.release(own)

    def upload(self, dst: View, src: memoryview) -> None:
        """Copy in through the staging ring."""
        check_transfer("upload", src.nbytes, dst.nbytes)
        buffer = self._own(dst.buffer)
        if src.nbytes:
            self._transfers.upload(buffer, dst.offset, src.cast("B"))
            buffer.enter(BufferState.IN_USE)

    def download(self, src: View, dst: memoryview) -> None:
        """Copy out, waiting for everything queued before."""
        check_transfer("download", src.nbytes, dst.nbytes)
        buffer = self._own(src.buffer)
        if src.nbytes:
            buffer.enter(BufferState.READ_BACK)
            self._transfers.download(buffer, src.offset, dst.cast("B"))

    def copy(self, src: View, dst: View) -> None:
        """Copy within the device."""
        check_transfer("copy", src.nbytes, dst.nbytes)
        source, target = self._own(src.buffer), self._own(dst.buffer)
        if src.nbytes:
            self._transfers.copy(source, src.offset, target, dst.offset, src.nbytes)
            target.enter(BufferState.IN_USE)

    def tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> dict[str, int]:
        """See tuning.py."""
        return tuning.choose(self._physical, spec, constants, params)

    def compile(self, spec: KernelSpec, constants: Mapping[str, int]) -> VulkanKernel:
        """A pipeline, from the disk cache where the driver has it."""
        return self._pipelines.build(spec, constants)

    def compile_once(self, spec: KernelSpec, constants: Mapping[str, int]) -> VulkanKernel:
        """`compile`, each kernel once."""
        key = spec.name, tuple(sorted(constants.items()))
        if key not in self._fused:
            self._fused[key] = self.compile(spec, constants)
        return self._fused[key]

    def compile_code(self, spec: KernelSpec, constants: Mapping[str, int], code: bytes) -> VulkanKernel:
        """A pipeline from SPIR-V of the caller's."""
        return self._pipelines.build_from(spec, constants, code)

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """Record one dispatch into the open command buffer, or into the recording under way."""
        if not isinstance(kernel, VulkanKernel):
            raise ValueError("this kernel is not one of this device")
        spec = kernel.spec
        check_launch(spec, views, params, self.info, kernel.constants)
        for view in views:
            self._own(view.buffer)
        if 0 in grid:
            return
        launch = Launch(kernel, grid, tuple(views), bytes(params))
        if self._recording is None:
            self._dispatch(launch).put(self._queue.commands())
        else:
            self._recording.launches.append(launch)

    def _dispatch(self, launch: Launch) -> Dispatch:
        """Bind the views, and the scratch memory that a split kernel needs besides."""
        kernel, grid, views = launch.kernel, launch.grid, launch.views
        access = [binding.access for binding in kernel.spec.bindings]
        if kernel.spec.name == "rope_store_kv" and kernel.source is Source.TILED:
            grid = (ceil_div(grid[0], kernel.constants["TILE_N"]), *grid[1:])
        if kernel.source in (Source.SPLIT, Source.RESIDENT):
            grid = (*grid[:2], kernel.constants.get("SPLITS", 1))
            at = SCRATCH_AT[kernel.spec.name]
            views = (*views[:at], *self._split_scratch(kernel, grid), *views[at:])
            access[at:at] = ["rw", "rw"]
        reads: list[Range] = []
        writes: list[Range] = []
        for mode, view in zip(access, views, strict=True):
            (reads if mode == "r" else writes).append((id(view.buffer), view.offset, view.offset + view.nbytes))
        return Dispatch(kernel, grid, self._descriptors.get(kernel.set_layout, views), launch.params, reads, writes)

    def _split_scratch(self, kernel: VulkanKernel, grid: Grid) -> tuple[View, View]:
        """What each workgroup of a split kernel found, and how many of them are done (0 between launches)."""
        sizes, last = split_bytes(kernel, grid), self._scratch.get(kernel.source)
        if last is None or any(buffer.nbytes < n for buffer, n in zip(last, sizes, strict=True)):
            # older ones stay: recordings bind them
            last = self._scratch[kernel.source] = self.alloc(sizes[0]), self.alloc(sizes[1])
        partial, finished = last
        return View(partial, 0, sizes[0]), View(finished, 0, sizes[1])

    @contextmanager
    def record(self) -> Iterator[VulkanRecording]:
        """Launches of the block go into a command buffer of their own."""
        if self._recording is not None:
            raise ValueError("a recording is already under way")
        commands = self._queue.new_commands(once=False)
        self._recording = recording = VulkanRecording(self, commands)
        try:
            yield recording
            dispatches = [
                self._dispatch(launch) for launch in fuse(recording.launches, self.compile_once, self._physical)
            ]
            recording.dispatches = dispatches
        finally:
            self._recording = None
            for dispatch in recording.dispatches:
                dispatch.put(commands)
            self._queue.end(commands)

    def replay(self, recording: Recording) -> None:
        """Submit the command buffer again."""
        if not isinstance(recording, VulkanRecording) or recording.commands is None:
            raise ValueError("this recording is not, or no longer, one of this device")
        self._queue.submit_recorded(recording.submit)

    def timings(self, recording: Recording) -> list[tuple[str, float]]:
        """Run a recording once with timestamps around each launch (none of them put together with another)."""
        if not isinstance(recording, VulkanRecording) or recording.commands is None:
            raise ValueError("this recording is not, or no longer, one of this device")
        return self.time([self._dispatch(launch) for launch in recording.launches])

    def time(self, dispatches: Sequence[Dispatch]) -> list[tuple[str, float]]:
        """(kernel name, seconds) of each dispatch, run once."""
        return timed(self._handle, self._physical, self._queue, dispatches)

    def forget(self, commands: Commands) -> None:
        """Free a recording's command buffer."""
        if not self._closed:
            self._queue.wait()
            self._queue.free_commands(commands)

    def synchronize(self) -> None:
        """Wait for everything queued; each submission has a bounded time."""
        self._queue.wait()
        if self._copies is not None:
            self._copies.wait()

    def close(self) -> None:
        """Free everything, whatever state the device is in."""
        if self._closed:
            return
        self._closed = True
        lib().vkDeviceWaitIdle(self._handle)
        for buffer in list(self._buffers):
            self._allocator.release(buffer)
        self._buffers.clear()
        self._transfers.close(self._allocator)
        self._descriptors.close()
        self._pipelines.close()
        self._queue.close()
        if self._copies is not None:
            self._copies.close()
        self._allocator.close()
        lib().vkDestroyDevice(self._handle, ffi().NULL)
        self._instance.close()
