"""What is alive and whose it is: frees, releases and closes in the middle of work, other devices, other threads."""

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
"""i32 in the buffers that these rules move about."""


def _kept(bench: Bench, *launches: Prepared) -> Recording:
    with bench.device.record() as recording:
        for launch in launches:
            launch.run(bench.device)
    return recording


def _numbers(first: int) -> Any:
    return np.arange(first, first + WORDS, dtype=np.int32)


class LivenessRules:
    """Whatever is gone, or another device's, is a ValueError before anything runs."""

    def test_transfers_inside_record_take_effect_at_once(self, bench: Bench) -> None:
        """Allocations, uploads, downloads, copies and compilations, and the recording has launches alone."""
        with bench.device.record() as recording:
            ones = counter(bench)  # allocates, uploads, and may compile
            ones.run(bench.device)
            view, copied = whole(bench.alloc(4 * WORDS)), whole(bench.alloc(4 * WORDS))
            bench.write(view, _numbers(1))
            bench.device.copy(view, copied)
            bench.write(view, _numbers(2))
            assert (bench.read(view).view(np.int32) == _numbers(2)).all(), "an upload inside record() was kept back"
            assert (bench.read(copied).view(np.int32) == _numbers(1)).all(), "a copy inside record() was kept back"
        bench.write(view, _numbers(3))
        bench.device.replay(recording)
        assert (bench.read(view).view(np.int32) == _numbers(3)).all(), "a replay repeats an upload"
        assert count(bench, ones) == 1
        recording.close()

    @pytest.mark.parametrize("call", ["free", "release", "replay", "synchronize", "record"])
    def test_record_refuses_what_it_cannot_keep(self, bench: Bench, call: str) -> None:
        """ValueError inside the block, which goes on."""
        ones, spare = counter(bench), bench.alloc(64)
        earlier = _kept(bench, ones)
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
        assert count(bench, ones) == 0, "something ran while it was recorded"
        bench.device.replay(recording)
        assert count(bench, ones) == 2, "the recording lost launches after a call that was refused"
        bench.write(View(spare, 0, 64), np.ones(64, dtype=np.uint8))
        earlier.close()
        recording.close()

    @pytest.mark.parametrize("gone", ["buffer", "kernel", "recording"])
    def test_a_recording_of_what_is_gone_is_refused(self, bench: Bench, gone: str) -> None:
        """Once a buffer of it is freed, a kernel of it released, or it is closed itself, it can only be closed."""
        other = bench.second()
        try:
            ones, others = counter(other), counter(other)
            recording, sound = _kept(other, others, ones), _kept(other, others)
            if gone == "buffer":
                other.device.free(ones.views["q"].buffer)
            elif gone == "kernel":
                other.device.release(ones.kernel)
            else:
                recording.close()
            with pytest.raises(ValueError):
                other.device.replay(recording)
            assert count(other, others) == 0, "launches ran before the recording was refused"
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
        """ValueError from every call but close, and a recording may still be closed."""
        other = bench.second()
        ones = counter(other)
        device, recording, view = other.device, _kept(other, ones), ones.views["y"]
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
        """Its buffers, kernels and recordings, though both are of one backend; and nothing of them is harmed."""
        other = bench.second()
        try:
            mine, theirs = counter(bench), counter(other)
            recording = _kept(other, theirs)
            view, host = theirs.views["y"], memoryview(bytearray(theirs.views["y"].nbytes))
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
        """What was queued before still reads it, and finishes before the memory has another use."""
        rng = np.random.default_rng(3)
        x, order = rng.integers(-99, 99, (16, 300)).astype(np.float32), rng.permutation(300)
        noise = np.full(x.size, 7, dtype=np.float32)
        for _ in range(5):
            shuffle = permutation(bench, None, None, order, x)
            source = bench.device.alloc(x.nbytes)
            bench.write(whole(source), x)
            views = [whole(source) if one is shuffle.views["x"] else one for one in shuffle.bound]
            for _ in range(20):
                bench.device.launch(shuffle.kernel, shuffle.grid, views, shuffle.params)
            bench.device.free(source)
            bench.write(whole(bench.alloc(x.nbytes)), noise)  # perhaps the same memory
            got = bench.take("y", shuffle.views["y"], np.float32).reshape(x.shape)
            assert (got == x[:, order]).all(), "a launch read its buffer after it was freed"

    def test_a_recording_may_be_closed_while_it_is_queued(self, bench: Bench) -> None:
        """The replays that were asked for still run."""
        ones = counter(bench)
        recording = _kept(bench, *[ones] * 5)
        for _ in range(10):
            bench.device.replay(recording)
        recording.close()
        assert count(bench, ones) == 50, "closing a recording lost replays that were queued"

    def test_calls_may_come_from_any_thread(self, bench: Bench) -> None:
        """One thread after another: the first opens the device, others compile, record, replay, read and close."""
        other, made = bench.second(), dict[str, Any]()

        def record() -> None:
            made["ones"] = counter(other)
            made["recording"] = _kept(other, made["ones"])

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
            assert fault is None, f"step {number} fails in a thread of its own: {type(fault).__name__}: {fault}"
        assert made["count"] == 2


def _in_a_thread(step: Callable[[], object]) -> BaseException | None:
    """What the step raised."""
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
