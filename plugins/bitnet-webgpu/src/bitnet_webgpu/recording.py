"""Launches become prepared dispatches; dispatches are encoded into one pass and submitted in bounded batches."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bitnet_core.hal.base import Launch

from bitnet_webgpu.compile import WebGpuKernel, stages
from bitnet_webgpu.driver import Handle, ffi, lib, module, raw
from bitnet_webgpu.errors import Stage, checked
from bitnet_webgpu.memory import WebGpuBuffer, words_of

FIRST_BATCH, BATCH = 64, 1024
"""Dispatches of the first submission after a wait, and of the largest: the GPU starts early, then hears of several
tokens at a time."""
KEPT = 1024
"""Sets of parameters that are kept for the next launch with the same."""


class Dispatch(NamedTuple):
    """What three native calls need, and the bind group that must live as long."""

    pipeline: Handle
    group: Handle
    grid: tuple[int, int, int]
    owner: Handle


class Binder:
    """Makes bind groups; parameters are uniform buffers, one for equal bytes."""

    def __init__(self, device: Handle, name: str) -> None:
        self._device, self._name = device, name
        self._params: dict[bytes, Handle] = {}

    def prepare(self, launch: Launch[WebGpuBuffer, WebGpuKernel]) -> tuple[Dispatch, ...]:
        """The dispatches of a launch: one, or two where a merge follows."""
        kernel = launch.kernel
        with checked(Stage.QUEUE, self._name):
            views = [
                {"buffer": buffer.handle, "offset": offset, "size": words_of(nbytes, 16)}
                for buffer, offset, nbytes in launch.bound
            ]
            views.append({"buffer": self._parameters(launch.params)})
            entries = [{"binding": i, "resource": view} for i, view in enumerate(views)]
            group = self._device.create_bind_group(layout=kernel.layout, entries=entries)
        grids = stages(launch.grid, kernel.tuning).values()
        return tuple(
            Dispatch(handle, raw(group), grid, group) for handle, grid in zip(kernel.handles, grids, strict=True)
        )

    def _parameters(self, params: bytes) -> Handle:
        if len(self._params) >= KEPT:
            self._params.clear()  # bind groups keep what they use
        if params not in self._params:
            data, usage = params.ljust(words_of(len(params), 16), b"\0"), module().BufferUsage.UNIFORM
            self._params[params] = self._device.create_buffer_with_data(data=data, usage=usage)
        return self._params[params]


class Queue:
    """Commands in order: encoded at once, submitted in batches, waited for in bounded time.

    until: waits for a condition during an operation (BaseDevice).
    """

    def __init__(self, device: Handle, name: str, until: Callable[[Callable[[], bool], str], None]) -> None:
        self._device, self._name, self._until = device, name, until
        self._encoder: Handle | None = None
        self._pass: Handle | None = None
        self._count, self._limit = 0, FIRST_BATCH
        native = lib()  # without the checks that wgpu's Python adds to each call of the hot path
        self._set_pipeline = native.wgpuComputePassEncoderSetPipeline
        self._set_group = native.wgpuComputePassEncoderSetBindGroup
        self._dispatch = native.wgpuComputePassEncoderDispatchWorkgroups

    def put(self, dispatches: Sequence[Dispatch]) -> None:
        """Encode; submit if there is enough. WebGPU orders dispatches that touch the same buffers by itself."""
        if self._count >= self._limit:
            self.submit()
        if self._pass is None:
            with checked(Stage.QUEUE, self._name):
                self._pass = self.encoder().begin_compute_pass()
        target, null = raw(self._pass), ffi().NULL
        set_pipeline, set_group, dispatch = self._set_pipeline, self._set_group, self._dispatch
        for pipeline, group, grid, _ in dispatches:
            set_pipeline(target, pipeline)
            set_group(target, 0, group, 0, null)
            dispatch(target, *grid)
        self._count += len(dispatches)

    def encoder(self) -> Handle:
        """The open encoder, for a command that is no dispatch; ends the pass."""
        self._end_pass()
        if self._encoder is None:
            with checked(Stage.QUEUE, self._name):
                self._encoder = self._device.create_command_encoder()
        return self._encoder

    def submit(self, *, writes: bool = False) -> None:
        """Hand over what is encoded. writes: also where nothing is, for the sake of what wgpu keeps of uploads."""
        if self._encoder is None and not writes:
            return
        encoder = self.encoder()
        self._encoder, self._count, self._limit = None, 0, min(2 * self._limit, BATCH)
        with checked(Stage.QUEUE, self._name):
            self._device.queue.submit([encoder.finish()])
        self.poll()

    def poll(self) -> bool:
        """Let wgpu free what is done; whether all is."""
        return bool(lib().wgpuDevicePoll(raw(self._device), 0, ffi().NULL))

    def wait(self, done: Callable[[], bool] | None = None) -> None:
        """Until everything submitted has finished, or `done`; GpuTimeoutError after the limit."""
        self.submit()

        def ready() -> bool:
            idle = self.poll()
            return done() if done else idle

        self._until(ready, "wait")
        self._limit = FIRST_BATCH

    def timed(self, launches: Sequence[Sequence[Dispatch]], read: Callable[[Handle, int, int], bytes]) -> list[float]:
        """Run the launches once, each in a pass of its own; seconds of each. read: bytes of a buffer of wgpu."""
        times: list[float] = []
        usage = module().BufferUsage
        period = lib().wgpuQueueGetTimestampPeriod(raw(self._device.queue)) * 1e-9
        for start in range(0, len(launches), BATCH):
            part = launches[start : start + BATCH]
            with checked(Stage.QUEUE, self._name):
                queries = self._device.create_query_set(type="timestamp", count=2 * len(part))
                ticks = self._device.create_buffer(size=16 * len(part), usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
                for i, dispatches in enumerate(part):
                    at = {"beginning_of_pass_write_index": 2 * i, "end_of_pass_write_index": 2 * i + 1}
                    self._pass = self.encoder().begin_compute_pass(timestamp_writes={"query_set": queries, **at})
                    self.put(dispatches)
                self.encoder().resolve_query_set(queries, 0, 2 * len(part), ticks, 0)
            found = struct.unpack(f"<{2 * len(part)}Q", read(ticks, 0, 16 * len(part)))
            times += [max(1, end - begin) * period for begin, end in zip(found[::2], found[1::2], strict=True)]
        return times

    def _end_pass(self) -> None:
        if self._pass is not None:
            ended, self._pass = self._pass, None
            with checked(Stage.QUEUE, self._name):
                ended.end()
