"""The queue: launches become prepared dispatches, which are encoded and submitted in bounded batches.

wgpu translates the commands of a batch to those of the driver when their encoder is finished, which takes the host
longer than encoding them. A thread does this while the next batch is encoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from bitnet_hal.plugin import BoundLaunch, DeviceInfo, Grid, LaunchRecording, MemoryKind, WordDevice, words_of

from bitnet_webgpu.compile import WebGpuKernel, stages
from bitnet_webgpu.driver import Handle, ffi, lib, raw
from bitnet_webgpu.errors import checked

FIRST_BATCH = 64
"""The number of dispatches of the first submission after a wait, so that the GPU starts early."""
BATCH = 256
"""The maximum number of dispatches of a submission, which covers a token of most models."""
MAX_PARAMETER_BUFFERS = 1024
"""The maximum number of cached uniform buffers, one for each distinct set of parameters."""


@dataclass(eq=False, slots=True)
class WebGpuBuffer:
    """A buffer, allocated up to the next multiple of 16 bytes."""

    handle: Handle
    nbytes: int
    kind: MemoryKind = MemoryKind.DEVICE


Dispatch = tuple[Handle, Handle, Grid, Handle]
"""Pipeline, bind group and grid for the three native calls, and the bind group's owner, which must live as long."""


class QueuedDevice(WordDevice[WebGpuBuffer, WebGpuKernel]):
    """A device's queue. A recording is a list of dispatches that each replay encodes again."""

    def __init__(self, info: DeviceInfo, handle: Handle) -> None:
        super().__init__(info)
        self._handle = handle
        self._params: dict[bytes, Handle] = {}  # uniform buffers
        self._encoder: Handle | None = None
        self._pass: Handle | None = None
        self._count = 0
        self._limit = FIRST_BATCH
        self._submitter = ThreadPoolExecutor(1, thread_name_prefix="bitnet-webgpu")  # starts at first use
        self._submission: Future[None] | None = None  # the last one
        native = lib()  # without the checks that wgpu's Python adds to each call of the hot path
        self._set_pipeline = native.wgpuComputePassEncoderSetPipeline
        self._set_group = native.wgpuComputePassEncoderSetBindGroup
        self._dispatch = native.wgpuComputePassEncoderDispatchWorkgroups

    def _made(self, nbytes: int, usage: str) -> WebGpuBuffer:
        """Create a zeroed buffer."""
        with checked("alloc", self.info.name, requested=nbytes):
            return WebGpuBuffer(self._handle.create_buffer(size=words_of(nbytes, 16), usage=usage), nbytes)

    def prepared(self, launch: BoundLaunch[WebGpuBuffer, WebGpuKernel]) -> tuple[Dispatch, ...]:
        """Return the dispatches of a launch: one, or two if a merge follows."""
        kernel = launch.kernel
        views = [
            {"buffer": buffer.handle, "offset": offset, "size": words_of(nbytes, 16)}
            for buffer, offset, nbytes in launch.bound
        ]
        views.append({"buffer": self._parameters(launch.params)})
        entries = [{"binding": i, "resource": view} for i, view in enumerate(views)]
        group = self._handle.create_bind_group(layout=kernel.layout, entries=entries)
        grids = stages(launch.grid, kernel.tuning).values()
        pipelines = map(raw, kernel.pipelines)
        return tuple((pipeline, raw(group), grid, group) for pipeline, grid in zip(pipelines, grids, strict=True))

    def _parameters(self, params: bytes) -> Handle:
        """Return the uniform buffer shared by all launches with these parameters."""
        if len(self._params) >= MAX_PARAMETER_BUFFERS:
            self._params.clear()  # bind groups keep what they use
        if params not in self._params:
            data = params.ljust(words_of(len(params), 16), b"\0")
            self._params[params] = self._handle.create_buffer_with_data(data=data, usage="UNIFORM")
        return self._params[params]

    def encoder(self) -> Handle:
        """Return the open encoder for a command other than a dispatch; ends the compute pass."""
        if self._pass is not None:
            ended = self._pass
            self._pass = None
            ended.end()
        if self._encoder is None:
            self._encoder = self._handle.create_command_encoder()
        return self._encoder

    def put(self, dispatches: Sequence[Dispatch]) -> None:
        """Encode dispatches and submit a full batch. WebGPU itself orders dispatches that touch the same buffers."""
        if self._pass is None:
            self._pass = self.encoder().begin_compute_pass()
        target = raw(self._pass)
        null = ffi().NULL
        set_pipeline = self._set_pipeline
        set_group = self._set_group
        dispatch = self._dispatch
        for pipeline, group, grid, _ in dispatches:
            set_pipeline(target, pipeline)
            set_group(target, 0, group, 0, null)
            dispatch(target, *grid)
        self._count += len(dispatches)
        if self._count >= self._limit:
            self.submit()

    def submit(self, *, writes: bool = False, then: Callable[[], object] | None = None) -> None:
        """Have the encoded commands submitted, once those before are. writes: submit even without commands, so that
        wgpu frees its upload copies. then: called after that. Raises the error of the submission before."""
        if self._encoder is None and not writes:
            return
        with checked("submit", self.info.name):
            encoder = self.encoder()
        self._encoder = None
        self._count = 0
        self._limit = min(2 * self._limit, BATCH)
        self.settle()
        self._submission = self._submitter.submit(self._finish, encoder, then)

    def _finish(self, encoder: Handle, then: Callable[[], object] | None) -> None:
        with checked("submit", self.info.name):
            self._handle.queue.submit([encoder.finish()])
        if then is not None:
            then()
        self.poll()

    def settle(self) -> None:
        """Wait until the last batch is submitted. Raises the error of its submission."""
        submission = self._submission
        if submission is not None:
            self._submission = None
            submission.result()

    def poll(self) -> bool:
        """Let wgpu release finished work, and return whether all submitted work has finished.

        The library writes only one of the four bytes that its header declares; the others are undefined.
        """
        return bool(lib().wgpuDevicePoll(raw(self._handle), 0, ffi().NULL) & 0xFF)

    def _wait(self) -> None:
        self.submit()
        self.settle()
        self._until(self.poll, "wait")
        self._limit = FIRST_BATCH

    def _run(self, launch: BoundLaunch[WebGpuBuffer, WebGpuKernel]) -> None:
        self.put(self.prepared(launch))

    def _record(self, recording: LaunchRecording[WebGpuBuffer, WebGpuKernel]) -> None:
        recording.native = [dispatch for launch in recording.launches for dispatch in self.prepared(launch)]

    def _replay(self, recording: LaunchRecording[WebGpuBuffer, WebGpuKernel]) -> None:
        self.put(recording.native)

    def _timings(self, recording: LaunchRecording[WebGpuBuffer, WebGpuKernel]) -> list[float]:
        """Time each launch with the timestamps of a separate pass."""
        times: list[float] = []
        period = lib().wgpuQueueGetTimestampPeriod(raw(self._handle.queue)) * 1e-9
        for start in range(0, len(recording.launches), BATCH):
            part = recording.launches[start : start + BATCH]
            queries = self._handle.create_query_set(type="timestamp", count=2 * len(part))
            ticks = self._made(16 * len(part), "QUERY_RESOLVE|COPY_SRC")
            for i, launch in enumerate(part):
                at = {"beginning_of_pass_write_index": 2 * i, "end_of_pass_write_index": 2 * i + 1}
                self._pass = self.encoder().begin_compute_pass(timestamp_writes={"query_set": queries, **at})
                self._run(launch)
            self.encoder().resolve_query_set(queries, 0, 2 * len(part), ticks.handle, 0)
            found = struct.unpack(f"<{2 * len(part)}Q", self._read(ticks, 0, ticks.nbytes))
            times += [max(1, end - begin) * period for begin, end in zip(found[::2], found[1::2], strict=True)]
        return times
