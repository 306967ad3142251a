"""Commands in order: encoded at once, committed in batches; recordings as indirect command buffers."""

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
BATCH = 1024  # dispatches of a command buffer, but for the first after a wait: the GPU starts at once
IN_FLIGHT = 32  # command buffers that are committed and not done; at its own limit Metal would block without a bound
MOST_COMMANDS = 16_384  # of an indirect command buffer, as Metal's feature tables say
PARAMETERS = 256  # bytes between two sets of parameters; Metal binds `constant` memory at multiples of 32 at least


@dataclass(frozen=True, eq=False, slots=True)
class Indirect:
    """A recording that the GPU runs by itself. resources: all that its commands touch."""

    commands: Handle
    count: int
    resources: list[Handle]
    pipelines: list[Handle]


def _dispatches(launch: MetalLaunch) -> Iterator[tuple[Handle, tuple[Handle, Handle]]]:
    """Pipeline, and threadgroups and their threads, of each stage; a merge takes one threadgroup for all splits."""
    size, (x, y, _) = module().MTLSize, launch.grid
    threads = size(launch.kernel.tuning.private["GROUP"], 1, 1)
    for pipeline, grid in zip(launch.kernel.pipelines, (launch.grid, (x, y, 1)), strict=False):
        yield pipeline, (size(*grid), threads)


def indirect(device: Handle, launches: Sequence[MetalLaunch]) -> Indirect | None:
    """The launches in an indirect command buffer; None if there are none, too many, or Metal makes no such buffer."""
    count = sum(len(launch.kernel.pipelines) for launch in launches)
    if not 0 < count <= MOST_COMMANDS:
        return None
    metal, about = module(), module().MTLIndirectCommandBufferDescriptor.alloc().init()
    about.setCommandTypes_(metal.MTLIndirectCommandTypeConcurrentDispatch)
    about.setInheritBuffers_(False)
    about.setInheritPipelineState_(False)
    about.setMaxKernelBufferBindCount_(1 + max(len(launch.bound) for launch in launches))
    params = b"".join(launch.params.ljust(PARAMETERS, b"\0") for launch in launches)
    with pool():
        commands = device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(about, count, 0)
        parameters = device.newBufferWithBytes_length_options_(params, len(params), metal.MTLResourceStorageModeShared)
        if commands is None or parameters is None:
            return None
        stages = [(n, launch, stage) for n, launch in enumerate(launches) for stage in _dispatches(launch)]
        for at, (number, launch, (pipeline, sizes)) in enumerate(stages):
            command = commands.indirectComputeCommandAtIndex_(at)
            command.setComputePipelineState_(pipeline)
            for index, (buffer, offset, _) in enumerate(launch.bound):
                command.setKernelBuffer_offset_atIndex_(buffer.handle, buffer.offset + offset, index)
            command.setKernelBuffer_offset_atIndex_(parameters, number * PARAMETERS, len(launch.bound))
            command.setBarrier()  # it waits for all before it
            command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(*sizes)
    used = {id(bound.buffer.handle): bound.buffer.handle for launch in launches for bound in launch.bound}
    pipelines = {id(one): one for launch in launches for one in launch.kernel.pipelines}
    return Indirect(commands, count, [*used.values(), parameters], [*pipelines.values()])


class QueuedDevice(WordDevice[MetalBuffer, MetalKernel]):
    """What a device does with its command queue.

    touch: set the pipelines of a recording once in an encoder that executes it; without, users report faults on M1, M2.
    """

    def __init__(self, info: DeviceInfo, handle: Handle, *, touch: bool) -> None:
        super().__init__(info)
        self._handle, self._touch, metal = handle, touch, module()
        self._queue = handle.newCommandQueueWithMaxCommandBufferCount_(2 * IN_FLIGHT)
        self._buffer_scope, self._nothing = metal.MTLBarrierScopeBuffers, metal.MTLSize(0, 0, 0)
        self._usage = metal.MTLResourceUsageRead | metal.MTLResourceUsageWrite
        self._completed, self._error = metal.MTLCommandBufferStatusCompleted, metal.MTLCommandBufferStatusError
        self._running: deque[Handle] = deque()
        self._open: Handle = None  # a command buffer, and its one encoder
        self._encoder: Handle = None
        self._computes, self._count = False, 0
        self._used: set[int] = set()  # recordings that the encoder knows

    def encoder(self, *, computes: bool) -> Handle:
        """That of the open command buffer, for launches or for copies; what it dispatches runs in order."""
        if self._open is None or self._computes != computes:
            self.submit()
            if len(self._running) >= IN_FLIGHT:
                self._reach(self._running[0])
            with pool():
                self._open, self._computes = self._queue.commandBuffer(), computes
                self._encoder = self._open.computeCommandEncoder() if computes else self._open.blitCommandEncoder()
        return self._encoder

    def _move(self, source: MetalBuffer, source_at: int, target: MetalBuffer, target_at: int, nbytes: int) -> None:
        copy = self.encoder(computes=False).copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_
        copy(source.handle, source.offset + source_at, target.handle, target.offset + target_at, nbytes)

    def submit(self) -> None:
        """Commit what is encoded."""
        if self._open is not None:
            self._encoder.endEncoding()
            self._open.commit()
            self._running.append(self._open)
            self._open, self._encoder, self._count = None, None, 0
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
        """Three calls; more where the encoder does not know the recording yet, or Metal made no such buffer."""
        if (native := recording.native) is None:
            super()._replay(recording)
            return
        encoder = self.encoder(computes=True)
        if id(native) not in self._used:
            self._used.add(id(native))
            encoder.useResources_count_usage_(native.resources, len(native.resources), self._usage)
            for pipeline in native.pipelines if self._touch else ():
                encoder.setComputePipelineState_(pipeline)
                encoder.dispatchThreadgroups_threadsPerThreadgroup_(self._nothing, self._nothing)
        encoder.memoryBarrierWithScope_(self._buffer_scope)
        encoder.executeCommandsInBuffer_withRange_(native.commands, (0, native.count))
        encoder.memoryBarrierWithScope_(self._buffer_scope)
        self._counted(native.count)

    def _forget(self, recording: LaunchRecording[MetalBuffer, MetalKernel]) -> None:
        self._wait()  # a command buffer does not keep the commands that it executes

    def _wait(self) -> None:
        self.submit()
        if self._running:
            self._reach(self._running[-1])

    def _reach(self, wanted: Handle) -> None:
        """Until a command buffer has finished, and with it those before it; raises their errors."""
        if not ready_within(self.timeout, lambda: wanted.status() >= self._completed):
            raise too_slow(self.timeout)
        while wanted in self._running:
            if (done := self._running.popleft()).status() == self._error:
                with pool():
                    raise failed(done.error())

    def _timings(self, recording: LaunchRecording[MetalBuffer, MetalKernel]) -> list[float]:
        """Between the GPU's timestamps of the start and the end of a command buffer for each launch."""
        times = []
        for launch in recording.launches:
            self._wait()
            self._run(launch)  # and commits it, since nothing is running
            (made,) = self._running
            self._wait()
            times.append(max(1e-9, made.GPUEndTime() - made.GPUStartTime()))
        return times

    def _close(self) -> None:
        self.submit()  # ends an encoder that is open
