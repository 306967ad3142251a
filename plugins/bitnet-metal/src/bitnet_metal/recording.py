"""The command queue: commands are encoded at once and committed in batches; recordings are indirect command buffers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bitnet_hal.plugin import BoundLaunch, DeviceInfo, LaunchRecording, WordDevice
from bitnet_hal.waiting import ready_within

from bitnet_metal.compile import MetalKernel
from bitnet_metal.driver import Handle, module, pool
from bitnet_metal.errors import failed, too_slow
from bitnet_metal.memory import MetalBuffer

MetalLaunch = BoundLaunch[MetalBuffer, MetalKernel]
BATCH = 1024
"""The dispatches of a command buffer; the first one after a wait is committed at once, so that the GPU starts."""
IN_FLIGHT = 32
"""The maximum number of unfinished command buffers; at its own limit Metal would block without a time limit."""
MAX_COMMANDS = 16_384
"""The maximum number of commands of an indirect command buffer, by Metal's feature tables."""
PARAMETER_STRIDE = 256
"""The bytes between two sets of parameters; Metal binds `constant` memory at multiples of 32 or more."""


@dataclass(frozen=True, eq=False, slots=True)
class Indirect:
    """A recording as an indirect command buffer. resources: the buffers that its commands use."""

    commands: Handle
    count: int
    resources: list[Handle]
    pipelines: list[Handle]


def _dispatches(launch: MetalLaunch) -> Iterator[tuple[Handle, tuple[Handle, Handle]]]:
    """Yield (pipeline, (threadgroups, threads per threadgroup)) of each stage.

    A merge has one threadgroup for all splits.
    """
    size = module().MTLSize
    x, y, _ = launch.grid
    threads = size(launch.kernel.tuning.private["GROUP"], 1, 1)
    for pipeline, grid in zip(launch.kernel.pipelines, (launch.grid, (x, y, 1)), strict=False):
        yield pipeline, (size(*grid), threads)


def indirect(device: Handle, launches: Sequence[MetalLaunch]) -> Indirect | None:
    """Encode launches in an indirect command buffer. Returns None if there are none or too many, or if Metal fails."""
    count = sum(len(launch.kernel.pipelines) for launch in launches)
    if not 0 < count <= MAX_COMMANDS:
        return None
    metal = module()
    descriptor = metal.MTLIndirectCommandBufferDescriptor.alloc().init()
    descriptor.setCommandTypes_(metal.MTLIndirectCommandTypeConcurrentDispatch)
    descriptor.setInheritBuffers_(False)
    descriptor.setInheritPipelineState_(False)
    descriptor.setMaxKernelBufferBindCount_(1 + max(len(launch.bound) for launch in launches))
    params = b"".join(launch.params.ljust(PARAMETER_STRIDE, b"\0") for launch in launches)
    with pool():
        commands = device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(descriptor, count, 0)
        parameters = device.newBufferWithBytes_length_options_(params, len(params), metal.MTLResourceStorageModeShared)
        if commands is None or parameters is None:
            return None
        stages = [(n, launch, stage) for n, launch in enumerate(launches) for stage in _dispatches(launch)]
        for at, (number, launch, (pipeline, sizes)) in enumerate(stages):
            command = commands.indirectComputeCommandAtIndex_(at)
            command.setComputePipelineState_(pipeline)
            for index, (buffer, offset, _) in enumerate(launch.bound):
                command.setKernelBuffer_offset_atIndex_(buffer.handle, buffer.offset + offset, index)
            command.setKernelBuffer_offset_atIndex_(parameters, number * PARAMETER_STRIDE, len(launch.bound))
            command.setBarrier()  # wait for all commands before it
            command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(*sizes)
    used = {id(bound.buffer.handle): bound.buffer.handle for launch in launches for bound in launch.bound}
    pipelines = {id(one): one for launch in launches for one in launch.kernel.pipelines}
    return Indirect(commands, count, [*used.values(), parameters], [*pipelines.values()])


class QueuedDevice(WordDevice[MetalBuffer, MetalKernel]):
    """A device's command queue.

    touch: set the pipelines of a recording once in each encoder that executes it; without that, users report faults on
    M1 and M2.
    """

    def __init__(self, info: DeviceInfo, handle: Handle, *, touch: bool) -> None:
        super().__init__(info)
        metal = module()
        self._handle = handle
        self._touch = touch
        self._queue = handle.newCommandQueueWithMaxCommandBufferCount_(2 * IN_FLIGHT)
        self._buffer_scope = metal.MTLBarrierScopeBuffers
        self._empty_grid = metal.MTLSize(0, 0, 0)
        self._usage = metal.MTLResourceUsageRead | metal.MTLResourceUsageWrite
        self._completed = metal.MTLCommandBufferStatusCompleted
        self._error = metal.MTLCommandBufferStatusError
        self._running: deque[Handle] = deque()
        self._open: Handle = None  # the open command buffer
        self._encoder: Handle = None  # its only encoder
        self._computes = False
        self._count = 0
        self._used: set[int] = set()  # recordings whose resources the encoder has declared

    def encoder(self, *, computes: bool) -> Handle:
        """Return the open encoder for launches or for copies, which runs its commands in order."""
        if self._open is None or self._computes != computes:
            self.submit()
            if len(self._running) >= IN_FLIGHT:
                self._reach(self._running[0])
            with pool():
                self._open = self._queue.commandBuffer()
                self._computes = computes
                self._encoder = self._open.computeCommandEncoder() if computes else self._open.blitCommandEncoder()
        return self._encoder

    def _move(self, source: MetalBuffer, source_at: int, target: MetalBuffer, target_at: int, nbytes: int) -> None:
        copy = self.encoder(computes=False).copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_
        copy(source.handle, source.offset + source_at, target.handle, target.offset + target_at, nbytes)

    def submit(self) -> None:
        """Commit the open command buffer."""
        if self._open is not None:
            self._encoder.endEncoding()
            self._open.commit()
            self._running.append(self._open)
            self._open = None
            self._encoder = None
            self._count = 0
            self._used.clear()

    def _counted(self, more: int) -> None:
        self._count += more
        if self._count >= BATCH or not self._running:
            self.submit()

    def _run(self, launch: MetalLaunch) -> None:
        encoder = self.encoder(computes=True)
        for pipeline, sizes in _dispatches(launch):
            encoder.setComputePipelineState_(pipeline)
            for index, (buffer, offset, _) in enumerate(launch.bound):
                encoder.setBuffer_offset_atIndex_(buffer.handle, buffer.offset + offset, index)
            encoder.setBytes_length_atIndex_(launch.params, len(launch.params), len(launch.bound))
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(*sizes)
        self._counted(len(launch.kernel.pipelines))

    def _record(self, recording: LaunchRecording[MetalBuffer, MetalKernel]) -> None:
        recording.native = indirect(self._handle, recording.launches)

    def _replay(self, recording: LaunchRecording[MetalBuffer, MetalKernel]) -> None:
        """Execute the indirect command buffer: three calls, and more for the first replay in an encoder."""
        native = recording.native
        if native is None:
            super()._replay(recording)
            return
        encoder = self.encoder(computes=True)
        if id(native) not in self._used:
            self._used.add(id(native))
            encoder.useResources_count_usage_(native.resources, len(native.resources), self._usage)
            for pipeline in native.pipelines if self._touch else ():
                encoder.setComputePipelineState_(pipeline)
                encoder.dispatchThreadgroups_threadsPerThreadgroup_(self._empty_grid, self._empty_grid)
        encoder.memoryBarrierWithScope_(self._buffer_scope)
        encoder.executeCommandsInBuffer_withRange_(native.commands, (0, native.count))
        encoder.memoryBarrierWithScope_(self._buffer_scope)
        self._counted(native.count)

    def _forget(self, recording: LaunchRecording[MetalBuffer, MetalKernel]) -> None:
        self._wait()  # a command buffer does not retain the indirect commands that it executes

    def _wait(self) -> None:
        self.submit()
        if self._running:
            self._reach(self._running[-1])

    def _reach(self, wanted: Handle) -> None:
        """Wait until a command buffer and those before it have finished, and raise their errors."""
        if not ready_within(self.timeout, lambda: wanted.status() >= self._completed):
            raise too_slow(self.timeout)
        while wanted in self._running:
            if (done := self._running.popleft()).status() == self._error:
                with pool():
                    raise failed(done.error())

    def _timings(self, recording: LaunchRecording[MetalBuffer, MetalKernel]) -> list[float]:
        """Time each launch by the GPU's timestamps of a separate command buffer."""
        times = []
        for launch in recording.launches:
            self._wait()
            self._run(launch)  # commits it too, because nothing is running
            (made,) = self._running
            self._wait()
            times.append(max(1e-9, made.GPUEndTime() - made.GPUStartTime()))
        return times

    def _close(self) -> None:
        self.submit()  # ends an encoder that is open
