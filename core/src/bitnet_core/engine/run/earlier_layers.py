"""Run earlier layers of a model on another device than the engine's.

Hidden rows go through host memory, with one download and one upload per step and device. Devices that can read each
other's memory copy them directly, so that the host can queue many steps ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from threading import Lock
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device
from bitnet_hal.features import PeerCopyDevice
from bitnet_hal.launcher import Launcher, RecordedLaunches
from bitnet_hal.p2p import probe

from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.run.prompt_bodies import PromptBodies
from bitnet_core.plan.device_weights import DeviceWeights
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.scratch import Scratch

Rows = npt.NDArray[np.float32]
"""Hidden states of a step's rows, f32[rows, H]."""


class Marked(NamedTuple):
    """The buffers of a step on one device, for peers; they hold the results once the device has reached the mark."""

    scratch: Scratch
    mark: object


class EarlierLayers:
    """The runner of the layers on one device, for decode steps of up to `rows` rows, and for prompts. lock: held while
    the device is used."""

    def __init__(
        self,
        device: Device,
        launcher: Launcher,
        pool: MemoryPool,
        weights: DeviceWeights,
        cache: KVCache,
        plan: Plan,
        rows: int,
        lock: Lock,
    ) -> None:
        self.device = device
        self.cache = cache
        self._launcher = launcher
        self._plan = plan
        self._hidden = weights.config.hidden
        self._lock = lock
        self._decode = Scratch(device, pool, weights.config, rows, 0)
        self._prompts = PromptBodies(device, launcher, pool, plan, cache)
        self._recordings: dict[int, RecordedLaunches] = {}

    def decode(self, step: npt.NDArray[np.int32], x: Rows | None) -> Rows:
        """Return the hidden states of a decode step i32[rows, 4] after these layers. x: those after the layers before;
        None for the first layers."""
        with self._lock:
            self._upload(self._decode, step, x)
            self._launcher.replay(self._recorded(len(step)))
            return self._download(self._decode, len(step))

    def queue(self, steps: Marked, before: Marked | None, rows: int) -> Marked:
        """Queue these layers of a decode step of `rows` rows, and return the hidden states after them. steps: the step
        on the last device; before: the hidden states after the layers before. All devices are `peers`."""
        if self.cache.changed_tables:
            self.cache.upload_tables()
        copy_rows(steps, self._decode, "step", rows)
        if before is not None:
            copy_rows(before, self._decode, "x", rows)
        self._launcher.replay(self._recorded(rows))
        return marked(self._decode)

    def prompt(self, step: npt.NDArray[np.int32], x: Rows | None, chunk: int) -> Rows:
        """Return the hidden states of a prompt step, as `decode`. chunk: largest number of rows of any prompt step."""
        with self._lock:
            scratch = self._prompts.scratch(len(step), chunk)
            self._upload(scratch, step, x)
            self._prompts.run(scratch, len(step))
            return self._download(scratch, len(step))

    def drop_scratch(self) -> bool:
        """Free the buffers that only prompts need; False if there were none."""
        return self._prompts.drop()

    def free(self) -> None:
        """Free scratch and recordings."""
        for recorded in self._recordings.values():
            recorded.recording.close()
        self._recordings.clear()
        self._prompts.drop()
        self._decode.free()

    def _upload(self, scratch: Scratch, step: npt.NDArray[np.int32], x: Rows | None) -> None:
        self.cache.upload_tables()
        scratch.upload("step", step)
        if x is not None:
            scratch.upload("x", x)

    def _download(self, scratch: Scratch, rows: int) -> Rows:
        x = np.empty((rows, self._hidden), np.float32)
        scratch.download("x", x)
        return x

    def _recorded(self, rows: int) -> RecordedLaunches:
        recorded = self._recordings.get(rows)
        if recorded is None:
            launches = self._plan.body(self._decode, self.cache, rows, decode=True)
            recorded = self._recordings[rows] = self._launcher.record(launches)
        return recorded


def peers(devices: Sequence[Device]) -> bool:
    """Return whether each of these devices can read the memory of all others."""
    pairs = permutations([device.info for device in devices], 2)
    return all(probe(one, other) == "peer copy" for one, other in pairs)


def marked(scratch: Scratch) -> Marked:
    """Return the buffers of a step with a mark after the work that is queued now."""
    return Marked(scratch, cast(PeerCopyDevice, scratch.device).mark())


def copy_rows(source: Marked, target: Scratch, name: str, rows: int) -> None:
    """Queue a copy of the first rows of a buffer to the same buffer of a peer."""
    views = source.scratch.view(name, rows), target.view(name, rows)
    cast(PeerCopyDevice, target.device).copy_from(source.scratch.device, *views, source.mark)
