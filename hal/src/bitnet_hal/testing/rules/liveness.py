"""Rules about lifetime and ownership: frees and closes while work is queued, other devices, other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bitnet_hal.device import Recording, View, whole
from bitnet_hal.testing.rules.recordings import count, counter, permutation
from bitnet_hal.testing.workbench import Bench, Prepared

WORDS = 64
"""i32 elements of the buffers in these rules."""


def _recorded(bench: Bench, *launches: Prepared) -> Recording:
    with bench.device.record() as recording:
        for launch in launches:
            launch.run(bench.device)
    return recording


def _numbers(first: int) -> Any:
    return np.arange(first, first + WORDS, dtype=np.int32)


class LivenessRules:
    """Rules about objects that are closed, freed or owned by another device: using one must raise ValueError before
    anything runs."""

    def test_transfers_inside_record_take_effect_at_once(self, bench: Bench) -> None:
        """Inside `record`, allocations, transfers and compilations must run immediately; only launches are recorded."""
        with bench.device.record() as recording:
            ones = counter(bench)  # allocates, uploads, and may compile
            ones.run(bench.device)
            view = whole(bench.alloc(4 * WORDS))
            copied = whole(bench.alloc(4 * WORDS))
            bench.write(view, _numbers(1))
            bench.device.copy(view, copied)
            bench.write(view, _numbers(2))
            assert (bench.read(view).view(np.int32) == _numbers(2)).all(), "an upload inside record() was delayed"
            assert (bench.read(copied).view(np.int32) == _numbers(1)).all(), "a copy inside record() was delayed"
        bench.write(view, _numbers(3))
        bench.device.replay(recording)
        assert (bench.read(view).view(np.int32) == _numbers(3)).all(), "a replay repeats an upload"
        assert count(bench, ones) == 1
        recording.close()

    @pytest.mark.parametrize("call", ["free", "release", "replay", "synchronize", "record"])
    def test_record_refuses_what_it_cannot_keep(self, bench: Bench, call: str) -> None:
        """Inside `record`, `free`, `release`, `replay`, `synchronize` and `record` must raise ValueError and keep
        the recording."""
        ones = counter(bench)
        spare = bench.alloc(64)
        earlier = _recorded(bench, ones)
        refused: dict[str, Callable[[], object]] = {
            "free": lambda: bench.device.free(spare),
            "release": lambda: bench.device.release(ones.kernel),
            "replay": lambda: bench.device.replay(earlier),
            "synchronize": bench.device.synchronize,
            "record": lambda: bench.device.record().__enter__(),
        }
        with bench.device.record() as recording:
            ones.run(bench.device)
            with pytest.raises(ValueError):
                refused[call]()
            ones.run(bench.device)
        assert count(bench, ones) == 0, "a launch ran while it was recorded"
        bench.device.replay(recording)
        assert count(bench, ones) == 2, "the recording lost launches after a rejected call"
        bench.write(View(spare, 0, 64), np.ones(64, dtype=np.uint8))
        earlier.close()
        recording.close()

    @pytest.mark.parametrize("gone", ["buffer", "kernel", "recording"])
    def test_a_recording_of_what_is_gone_is_refused(self, bench: Bench, gone: str) -> None:
        """`replay` must raise ValueError once a buffer of the recording is freed, a kernel released, or the
        recording closed."""
        other = bench.second()
        try:
            ones = counter(other)
            others = counter(other)
            recording = _recorded(other, others, ones)
            sound = _recorded(other, others)
            if gone == "buffer":
                other.device.free(ones.views["q"].buffer)
            elif gone == "kernel":
                other.device.release(ones.kernel)
            else:
                recording.close()
            with pytest.raises(ValueError):
                other.device.replay(recording)
            assert count(other, others) == 0, "launches ran although the recording is invalid"
            recording.close()
            if gone == "kernel":
                with pytest.raises(ValueError):
                    ones.run(other.device)
            else:
                other.device.replay(sound)
                assert count(other, others) == 1, "another recording no longer works"
        finally:
            other.close()

    def test_nothing_works_after_close(self, bench: Bench) -> None:
        """After `close`, every call but `close` must raise ValueError; recordings may still be closed."""
        other = bench.second()
        ones = counter(other)
        device = other.device
        recording = _recorded(other, ones)
        view = ones.views["y"]
        other.close()
        host = memoryview(bytearray(view.nbytes))
        calls: tuple[Callable[[], object], ...] = (
            lambda: device.alloc(64),
            lambda: device.upload(view, host),
            lambda: device.download(view, host),
            lambda: device.copy(view, view),
            lambda: device.free(view.buffer),
            lambda: ones.run(device),
            lambda: device.replay(recording),
            lambda: device.record().__enter__(),
            lambda: device.compile(ones.kernel.spec, ones.kernel.constants, ones.kernel.tuning),
            lambda: device.release(ones.kernel),
            device.synchronize,
        )
        for call in calls:
            with pytest.raises(ValueError):
                call()
        recording.close()
        device.close()

    def test_what_another_device_made_is_refused(self, bench: Bench) -> None:
        """Buffers, kernels and recordings of another device of the same backend must raise ValueError and stay
        intact."""
        other = bench.second()
        try:
            mine = counter(bench)
            theirs = counter(other)
            recording = _recorded(other, theirs)
            view = theirs.views["y"]
            host = memoryview(bytearray(theirs.views["y"].nbytes))
            bound = [view if one is mine.views["y"] else one for one in mine.bound]
            calls: tuple[Callable[[], object], ...] = (
                lambda: bench.device.upload(view, host),
                lambda: bench.device.download(view, host),
                lambda: bench.device.copy(view, mine.views["y"]),
                lambda: bench.device.copy(mine.views["y"], view),
                lambda: bench.device.launch(theirs.kernel, mine.grid, mine.bound, mine.params),
                lambda: bench.device.launch(mine.kernel, mine.grid, bound, mine.params),
                lambda: bench.device.replay(recording),
                lambda: bench.device.release(theirs.kernel),
                lambda: bench.device.free(view.buffer),
            )
            for call in calls:
                with pytest.raises(ValueError):
                    call()
            other.device.replay(recording)
            mine.run(bench.device)
            assert (count(bench, mine), count(other, theirs)) == (1, 1)
            recording.close()
        finally:
            other.close()

    def test_a_buffer_may_be_freed_while_work_is_queued(self, bench: Bench) -> None:
        """Work queued before `free` must still read the buffer, before its memory is reused."""
        rng = np.random.default_rng(3)
        x = rng.integers(-99, 99, (16, 300)).astype(np.float32)
        order = rng.permutation(300)
        noise = np.full(x.size, 7, dtype=np.float32)
        for _ in range(5):
            shuffle = permutation(bench, None, None, order, x)
            source = bench.device.alloc(x.nbytes)
            bench.write(whole(source), x)
            views = [whole(source) if one is shuffle.views["x"] else one for one in shuffle.bound]
            for _ in range(20):
                bench.device.launch(shuffle.kernel, shuffle.grid, views, shuffle.params)
            bench.device.free(source)
            bench.write(whole(bench.alloc(x.nbytes)), noise)  # may reuse the same memory
            got = bench.take("y", shuffle.views["y"], np.float32).reshape(x.shape)
            assert (got == x[:, order]).all(), "a launch read its buffer after it was freed"

    def test_a_recording_may_be_closed_while_it_is_queued(self, bench: Bench) -> None:
        """Replays queued before `close` must still run."""
        ones = counter(bench)
        recording = _recorded(bench, *[ones] * 5)
        for _ in range(10):
            bench.device.replay(recording)
        recording.close()
        assert count(bench, ones) == 50, "closing a recording lost replays that were queued"

    def test_calls_may_come_from_any_thread(self, bench: Bench) -> None:
        """Calls from one thread after another must work: open, compile, record, replay, read and close."""
        other = bench.second()
        made = dict[str, Any]()

        def record() -> None:
            made["ones"] = counter(other)
            made["recording"] = _recorded(other, made["ones"])

        steps: list[Callable[[], object]] = [
            lambda: other.device,
            record,
            lambda: other.device.replay(made["recording"]),
            lambda: made["ones"].run(other.device),
            lambda: made.update(count=count(other, made["ones"])),
            lambda: made["recording"].close(),
            other.close,
        ]
        for number, step in enumerate(steps):
            fault = _in_a_thread(step)
            assert fault is None, f"step {number} fails in another thread: {type(fault).__name__}: {fault}"
        assert made["count"] == 2


def _in_a_thread(step: Callable[[], object]) -> BaseException | None:
    """Run the step in a new thread and return the exception that it raised."""
    faults: list[BaseException] = []

    def run() -> None:
        try:
            step()
        except BaseException as fault:  # noqa: BLE001 - shown by the caller
            faults.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    fault = faults[0] if faults else None
    if isinstance(fault, pytest.skip.Exception):
        raise fault
    return fault
