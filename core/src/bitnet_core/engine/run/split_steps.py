"""Run the first layers of a split model on the earlier devices, and hand their hidden rows to the last device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.catalogue import STEP_FIELDS
from bitnet_hal.launcher import Launcher, RecordedLaunches

from bitnet_core.engine.run.earlier_layers import EarlierLayers, Marked, Rows, copy_rows, marked, peers
from bitnet_core.plan.scratch import Scratch


class SplitSteps:
    """Steps of a model whose first layers are on other devices.

    earlier: these layers, by device, in order. launcher, decode: launcher and decode buffers of the last device. lock:
    as in Runner. direct: True if all devices are peers, so that greedy steps are queued without waiting for any of
    them.
    """

    def __init__(
        self, earlier: Sequence[EarlierLayers], launcher: Launcher, decode: Scratch, lock: Lock | None
    ) -> None:
        self.direct = peers([*(layers.device for layers in earlier), decode.device])
        self._earlier = earlier
        self._launcher = launcher
        self._decode = decode
        self._lock = lock
        self._last: Marked | None = None  # the last step, for peers; None if other work was queued after it

    def prompt(self, step: npt.NDArray[np.int32], chunk: int) -> Rows:
        """Return the hidden states of a prompt step i32[rows, 4] after the earlier layers. chunk: as in
        EarlierLayers.prompt."""
        return self._hidden(lambda layers, x: layers.prompt(step, x, chunk))

    def replay(self, recorded: RecordedLaunches, size: int) -> None:
        """Run a recorded step of `size` rows; hidden rows of earlier layers go through host memory."""
        step = np.empty((size, STEP_FIELDS), np.int32)
        self._decode.download("step", step)
        self._decode.upload("x", self._hidden(lambda layers, x: layers.decode(step, x)))
        self._launcher.replay(recorded)

    def replay_greedy(self, recorded: RecordedLaunches, times: int, size: int) -> None:
        """Run a recorded step of `size` rows several times; each run uses the rows that the one before left in the step
        buffer."""
        for _ in range(times):
            if not self.direct:
                self.replay(recorded, size)
                continue
            before: Marked | None = None
            last = self._last or marked(self._decode)
            for layers in self._earlier:
                before = layers.queue(last, before, size)
            assert before is not None
            copy_rows(before, self._decode, "x", size)
            self._launcher.replay(recorded)
            self._last = marked(self._decode)

    def forget(self) -> None:
        """Drop the mark after the last step, because other work that changes the step buffer was queued."""
        self._last = None

    def drop_scratch(self) -> bool:
        """Free the buffers that only prompts need; False if there were none."""
        dropped = False
        for layers in self._earlier:
            dropped = layers.drop_scratch() or dropped
        return dropped

    def free(self) -> None:
        """Free scratch and recordings of the earlier layers."""
        for layers in self._earlier:
            layers.free()

    def _hidden(self, compute: Callable[[EarlierLayers, Rows | None], Rows]) -> Rows:
        """Return the hidden states after the earlier layers, computed by one device after the other."""
        if self._lock:
            self._lock.release()
        try:
            x: Rows | None = None
            for layers in self._earlier:
                x = compute(layers, x)
        finally:
            if self._lock:
                self._lock.acquire()
        assert x is not None
        return x
