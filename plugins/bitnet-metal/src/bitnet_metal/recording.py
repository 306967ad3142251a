"""Commands in order: encoded at once, committed in batches; recordings as indirect command buffers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet_core.hal.base import Launch
from bitnet_core.hal.waiting import ready_within

from bitnet_metal.compile import MetalKernel
from bitnet_metal.driver import Handle, module, pool
from bitnet_metal.errors import failed, too_slow

if TYPE_CHECKING:
    from bitnet_metal.memory import MetalBuffer

    MetalLaunch = Launch[MetalBuffer, MetalKernel]

FIRST_BATCH, BATCH = 64, 1024
"""Dispatches of the first command buffer after a wait, and of the largest: the GPU starts early, then gets several tokens
at a time."""
IN_FLIGHT = 32
"""Command buffers that are committed and not done; at its own limit Metal would block without a bound."""
MOST_COMMANDS = 16_384
"""Of an indirect command buffer, as Metal's feature tables say."""
PARAMETERS = 256
"""Bytes between two sets of parameters of a recording; Metal binds `constant` memory at multiples of 32 at least."""


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
    """The launches in an indirect command buffer; None where there are none, too many, or Metal makes no such buffer."""
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
        _fill(commands, launches, parameters)
    used = {id(bound.buffer.handle): bound.buffer.handle for launch in launches for bound in launch.bound}
    pipelines = {id(one): one for launch in launches for one in launch.kernel.pipelines}
    return Indirect(commands, count, [*used.values(), parameters], [*pipelines.values()])


def _fill(commands: Handle, launches: Sequence[MetalLaunch], parameters: Handle) -> None:
    """Every command waits for those before it."""
    stages = [(n, launch, stage) for n, launch in enumerate(launches) for stage in _dispatches(launch)]
    for at, (number, launch, (pipeline, sizes)) in enumerate(stages):
        command = commands.indirectComputeCommandAtIndex_(at)
        command.setComputePipelineState_(pipeline)
        for index, (buffer, offset, _) in enumerate(launch.bound):
            command.setKernelBuffer_offset_atIndex_(buffer.handle, buffer.offset + offset, index)
        command.setKernelBuffer_offset_atIndex_(parameters, number * PARAMETERS, len(launch.bound))
        command.setBarrier()
        command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(*sizes)


class Queue:
    """One command queue. timeout: gives the seconds that one wait may take.

    touch: set every pipeline of a recording once, with an empty dispatch, in an encoder that executes it: users of
    indirect command buffers report faults of the GPU without it on M1 and M2.
    """

    def __init__(self, device: Handle, name: str, timeout: Callable[[], float], *, touch: bool) -> None:
        self._name, self._timeout, self._touch, metal = name, timeout, touch, module()
        self._queue = device.newCommandQueueWithMaxCommandBufferCount_(2 * IN_FLIGHT)
        self._buffers, self._nothing = metal.MTLBarrierScopeBuffers, metal.MTLSize(0, 0, 0)
        self._usage = metal.MTLResourceUsageRead | metal.MTLResourceUsageWrite
        self._completed, self._error = metal.MTLCommandBufferStatusCompleted, metal.MTLCommandBufferStatusError
        self._running: deque[Handle] = deque()
        self._open: Handle | None = None
        self._encoder: Handle | None = None
        self._computes = False  # else the encoder is one for copies
        self._used: set[int] = set()  # recordings that the encoder knows
        self._count, self._limit = 0, FIRST_BATCH

    def put(self, launch: MetalLaunch) -> None:
        """Encode a launch; what an encoder dispatches runs in order."""
        encoder = self._encoding(computes=True)
        for pipeline, sizes in _dispatches(launch):
            encoder.setComputePipelineState_(pipeline)
            for index, (buffer, offset, _) in enumerate(launch.bound):
                encoder.setBuffer_offset_atIndex_(buffer.handle, buffer.offset + offset, index)
            encoder.setBytes_length_atIndex_(launch.params, len(launch.params), len(launch.bound))
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(*sizes)
        self._counted(len(launch.kernel.pipelines))

    def replay(self, recording: Indirect) -> None:
        """Three calls; more where the encoder does not know the recording yet."""
        encoder = self._encoding(computes=True)
        if id(recording) not in self._used:
            self._used.add(id(recording))
            encoder.useResources_count_usage_(recording.resources, len(recording.resources), self._usage)
            for pipeline in recording.pipelines if self._touch else ():
                encoder.setComputePipelineState_(pipeline)
                encoder.dispatchThreadgroups_threadsPerThreadgroup_(self._nothing, self._nothing)
        encoder.memoryBarrierWithScope_(self._buffers)
        encoder.executeCommandsInBuffer_withRange_(recording.commands, (0, recording.count))
        encoder.memoryBarrierWithScope_(self._buffers)
        self._counted(recording.count)

    def move(self, source: Handle, at: int, target: Handle, to: int, nbytes: int) -> None:
        """Copy between buffers; offsets and size are multiples of 4."""
        self.blit().copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(source, at, target, to, nbytes)

    def blit(self) -> Handle:
        """The open encoder for copies."""
        return self._encoding(computes=False)

    def _encoding(self, *, computes: bool) -> Handle:
        if self._encoder is None or self._computes != computes:
            self._end()
            if self._open is None and len(self._running) >= IN_FLIGHT:
                self._reach(self._running[0])
            with pool():
                if self._open is None:
                    self._open = self._queue.commandBuffer()
                self._encoder = self._open.computeCommandEncoder() if computes else self._open.blitCommandEncoder()
            self._computes = computes
        return self._encoder

    def _counted(self, more: int) -> None:
        self._count += more
        if self._count >= self._limit:
            self.submit()
            self._limit = min(2 * self._limit, BATCH)

    def _end(self) -> None:
        if self._encoder is not None:
            self._encoder.endEncoding()
            self._encoder = None
            self._used.clear()

    def submit(self) -> None:
        """Commit what is encoded."""
        self._end()
        if self._open is not None:
            committed, self._open, self._count = self._open, None, 0
            committed.commit()
            self._running.append(committed)

    def wait(self) -> None:
        """Until everything has finished; GpuTimeoutError after the limit, or the error of a command buffer."""
        self.submit()
        if self._running:
            self._reach(self._running[-1])
        self._limit = FIRST_BATCH

    def _reach(self, wanted: Handle) -> None:
        """Until a command buffer has finished, and with it those before it."""
        if not ready_within(self._timeout(), lambda: wanted.status() >= self._completed):
            raise too_slow(self._timeout(), self._name)
        while wanted in self._running:
            done = self._running.popleft()
            if done.status() == self._error:
                with pool():
                    raise failed(done.error(), self._name)

    def timed(self, launches: Sequence[MetalLaunch]) -> list[float]:
        """Run each in a command buffer of its own; seconds between the GPU's timestamps of its start and its end."""
        times = []
        for launch in launches:
            self.wait()
            self.put(launch)
            self.submit()
            (made,) = self._running
            self.wait()
            times.append(max(1e-9, made.GPUEndTime() - made.GPUStartTime()))
        return times
