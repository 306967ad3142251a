"""Launches become prepared dispatches; dispatches are encoded into one pass and submitted in bounded batches."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bitnet_core.errors import GpuTimeoutError
from bitnet_core.hal.base import Launch

from bitnet_webgpu.compile import WebGpuKernel, grids
from bitnet_webgpu.driver import Handle, ffi, lib, module, raw
from bitnet_webgpu.errors import BACKEND, Stage, checked
from bitnet_webgpu.memory import WebGpuBuffer

FIRST_BATCH, BATCH = 64, 1024
"""Dispatches of the first submission after a wait, and of the largest: the GPU starts early, then hears of several
tokens at a time."""
KEPT = 1024
"""Sets of parameters that are kept for the next launch with the same."""
_SPIN = 200e-6
"""Seconds of a wait without sleep: most waits are for work that is nearly done."""


class Dispatch(NamedTuple):
    """What three native calls need."""

    pipeline: Handle
    group: Handle
    grid: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The dispatches of a launch, and the bind group that must live as long."""

    dispatches: tuple[Dispatch, ...]
    group: Handle


class Binder:
    """Makes bind groups; parameters are uniform buffers, one for equal bytes."""

    def __init__(self, device: Handle, name: str) -> None:
        self._device, self._name = device, name
        self._params: dict[bytes, Handle] = {}

    def prepare(self, launch: Launch[WebGpuBuffer, WebGpuKernel]) -> Prepared:
        """The dispatches of a launch: one, or two where a merge follows."""
        views = [
            {"buffer": buffer.handle, "offset": offset, "size": -(-nbytes // 16) * 16}
            for buffer, offset, nbytes in launch.bound
        ]
        with checked(Stage.QUEUE, self._name):
            views.append({"buffer": self._parameters(launch.params)})
            entries = [{"binding": i, "resource": view} for i, view in enumerate(views)]
            group = self._device.create_bind_group(layout=launch.kernel.layout, entries=entries)
        stages = zip(launch.kernel.handles, grids(launch.grid, launch.kernel.tuning), strict=True)
        return Prepared(tuple(Dispatch(pipeline, raw(group), grid) for pipeline, grid in stages), group)

    def _parameters(self, params: bytes) -> Handle:
        if len(self._params) >= KEPT:
            self._params.clear()  # bind groups keep what they use
        if params not in self._params:
            data, usage = params + bytes(-len(params) % 16), module().BufferUsage.UNIFORM
            self._params[params] = self._device.create_buffer_with_data(data=data, usage=usage)
        return self._params[params]


class Queue:
    """Commands in order: encoded at once, submitted in batches, waited for in bounded time.

    timeout: gives the seconds that one wait may take.
    """

    def __init__(self, device: Handle, name: str, timeout: Callable[[], float]) -> None:
        self._device, self._name, self._timeout = device, name, timeout
        self._encoder: Handle | None = None
        self._pass: Handle | None = None
        self._count, self._limit = 0, FIRST_BATCH
        native = lib()
        self._set_pipeline = native.wgpuComputePassEncoderSetPipeline
        self._set_group = native.wgpuComputePassEncoderSetBindGroup
        self._dispatch = native.wgpuComputePassEncoderDispatchWorkgroups
        self._null = ffi().NULL

    def put(self, dispatches: Sequence[Dispatch]) -> None:
        """Encode; submit if there is enough. WebGPU orders dispatches that touch the same buffers by itself."""
        if self._count >= self._limit:
            self.submit()
        if self._pass is None:
            with checked(Stage.QUEUE, self._name):
                self._pass = self.encoder().begin_compute_pass()
        target, set_pipeline, set_group, dispatch, null = (
            *(raw(self._pass), self._set_pipeline, self._set_group, self._dispatch, self._null),
        )
        for pipeline, group, grid in dispatches:
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

    def submit(self) -> None:
        """Hand over what is encoded."""
        if self._encoder is None:
            return
        self._end_pass()
        encoder, self._encoder = self._encoder, None
        self._count, self._limit = 0, min(2 * self._limit, BATCH)
        with checked(Stage.QUEUE, self._name):
            self._device.queue.submit([encoder.finish()])
        self.poll()

    def flush_writes(self) -> None:
        """Let queued writes begin: wgpu keeps copies of them until a submission."""
        self.submit()
        with checked(Stage.QUEUE, self._name):
            self._device.queue.submit([])
        self.poll()

    def poll(self) -> bool:
        """Let wgpu free what is done; whether all is."""
        return bool(lib().wgpuDevicePoll(raw(self._device), 0, self._null))

    def wait(self, done: Callable[[], bool] | None = None) -> None:
        """Until everything submitted has finished, or `done`; GpuTimeoutError after the limit."""
        self.submit()
        began = time.perf_counter()
        while True:
            idle = self.poll()
            if done() if done else idle:
                break
            waited = time.perf_counter() - began
            if waited > self._timeout():
                hint = "Raise BITNET_GPU_TIMEOUT (seconds) if the device is only slow"
                raise GpuTimeoutError(
                    f"not done after {waited:.0f} s", backend=BACKEND, device=self._name, operation="wait", hint=hint
                )
            if waited > _SPIN:
                time.sleep(min(waited / 16, 5e-4))
        self._limit = FIRST_BATCH

    def timed(self, launches: Sequence[Prepared], read: Callable[[Handle, int], bytes]) -> list[float]:
        """Run the launches once, each in a pass of its own; seconds of each. read: bytes of a buffer of wgpu."""
        times: list[float] = []
        usage = module().BufferUsage
        period = lib().wgpuQueueGetTimestampPeriod(raw(self._device.queue)) * 1e-9
        for start in range(0, len(launches), BATCH):
            part = launches[start : start + BATCH]
            with checked(Stage.QUEUE, self._name):
                queries = self._device.create_query_set(type="timestamp", count=2 * len(part))
                ticks = self._device.create_buffer(size=16 * len(part), usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
                for i, prepared in enumerate(part):
                    at = {"beginning_of_pass_write_index": 2 * i, "end_of_pass_write_index": 2 * i + 1}
                    self._pass = self.encoder().begin_compute_pass(timestamp_writes={"query_set": queries, **at})
                    self.put(prepared.dispatches)
                self.encoder().resolve_query_set(queries, 0, 2 * len(part), ticks, 0)
            found = struct.unpack(f"<{2 * len(part)}Q", read(ticks, 16 * len(part)))
            times += [max(1, end - begin) * period for begin, end in zip(found[::2], found[1::2], strict=True)]
        return times

    def _end_pass(self) -> None:
        if self._pass is not None:
            ended, self._pass = self._pass, None
            with checked(Stage.QUEUE, self._name):
                ended.end()
