"""Rules about recordings: launches that are recorded once and replayed."""

from __future__ import annotations

import numpy as np
import pytest

from bitnet_hal.device import View
from bitnet_hal.kernels.base import ARGMAX_ADVANCE, MATMUL_DENSE, MATMUL_TERNARY
from bitnet_hal.testing.cases.case import Array, CaseLaunch
from bitnet_hal.testing.cases.data import pack_codes
from bitnet_hal.testing.resident import resident
from bitnet_hal.testing.workbench import Bench, Prepared


def counter(bench: Bench, rows: int = 3, outs: int = 5) -> Prepared:
    """Return a launch that adds 1 to every element of y: matmul_ternary with ADD on a single +1."""
    q = np.zeros((rows, 128), dtype=np.int8)
    q[:, 0] = 1
    ones = np.ones(max(rows, outs), dtype=np.float32)
    return bench.prepare(
        MATMUL_TERNARY,
        CaseLaunch(
            {"rows": rows, "outs": outs, "width": 128, "y_stride": outs, "y_first": 0},
            {
                "w": pack_codes(np.full((outs, 128), 2)),
                "wscale": ones[:outs],
                "q": q,
                "scale": ones[:rows],
                "qsum": np.ones(rows, dtype=np.int32),
                "y": np.zeros(rows * outs, dtype=np.float32),
            },
            {"ADD": 1},
        ),
    )


def count(bench: Bench, prepared: Prepared) -> float:
    """Return the value of a counter. Raises AssertionError if its elements differ."""
    y = bench.take("y", prepared.views["y"], np.float32)
    assert (y == y[0]).all(), f"launches reached only a part of y: {y}"
    return float(y[0])


def permutation(bench: Bench, source: View | None, target: View | None, order: Array, x: Array) -> Prepared:
    """Return a launch of target[t, n] = source[t, order[n]]: matmul_dense with a permutation matrix."""
    bound = {name: view for name, view in (("x", source), ("y", target)) if view}
    return bench.prepare(
        MATMUL_DENSE,
        CaseLaunch(
            {"rows": len(x), "outs": len(order), "width": len(order), "y_stride": len(order), "y_first": 0},
            {
                "x": x.reshape(-1),
                "w": np.eye(len(order), dtype=np.float32)[order].reshape(-1).view(np.uint8),
                "y": np.zeros(x.size, dtype=np.float32),
            },
            {"DTYPE": 0},
        ),
        bound,
    )


SOAK = 100
"""Recordings in the soak test, and launches in each."""
SOAK_GROWTH = 16 << 20


class RecordingRules:
    """Rules about recordings; a counter shows how often its launch ran."""

    def test_nothing_runs_before_replay(self, bench: Bench) -> None:
        """Recording a launch must not run it."""
        ones = counter(bench)
        with bench.device.record():
            ones.run(bench.device)
        bench.device.synchronize()
        assert count(bench, ones) == 0, "a launch ran while it was recorded"

    def test_every_replay_runs_again(self, bench: Bench) -> None:
        """Each replay must run the launch once."""
        ones = counter(bench)
        with bench.device.record() as recording:
            ones.run(bench.device)
        for replays in (1, 2, 3):
            bench.device.replay(recording)
            assert count(bench, ones) == replays, f"after {replays} replays the launch ran {count(bench, ones):g} times"
        recording.close()

    def test_replays_need_no_wait_between_them(self, bench: Bench) -> None:
        """Replays must run in queue order without a wait between them: fifty replays of two launches add 100."""
        ones = counter(bench)
        with bench.device.record() as recording:
            ones.run(bench.device)
            ones.run(bench.device)
        for _ in range(50):
            bench.device.replay(recording)
        assert count(bench, ones) == 100
        recording.close()

    def test_replay_reads_what_the_buffers_hold_now(self, bench: Bench) -> None:
        """A replay must read the current contents of its buffers, not those at recording."""
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        order = np.array([3, 0, 2, 1])
        shuffle = permutation(bench, None, None, order, x)
        with bench.device.record() as recording:
            shuffle.run(bench.device)
        for contents in (x, x + 100, x * -2):
            bench.write(shuffle.views["x"], contents)
            bench.device.replay(recording)
            y = bench.take("y", shuffle.views["y"], np.float32).reshape(2, 4)
            assert (y == contents[:, order]).all(), "replay did not read the current contents of the buffers"
        recording.close()

    def test_a_recording_keeps_its_own_list_of_views(self, bench: Bench) -> None:
        """A recording must copy the list of views, which the caller may reuse."""
        ones = counter(bench)
        views = ones.bound
        with bench.device.record() as recording:
            bench.device.launch(ones.kernel, ones.grid, views, ones.params)
            views.clear()
        bench.device.replay(recording)
        assert count(bench, ones) == 1
        recording.close()

    def test_each_launch_has_its_own_kernel_and_parameters(self, bench: Bench) -> None:
        """Launches of two kernels with two sets of parameters each must not mix in one recording."""
        one = counter(bench)
        two = counter(bench, 2, 7)
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        order = np.array([3, 0, 2, 1])
        small = permutation(bench, None, None, order, x)
        large = permutation(bench, None, None, order[::-1], x[:2])
        with bench.device.record() as recording:
            for launch in (one, small, two, large, one):
                launch.run(bench.device)
        for replays in (1, 2):
            bench.device.replay(recording)
            assert count(bench, one) == 2 * replays, "a launch used the parameters of another"
            assert count(bench, two) == replays, "a launch used the parameters of another"
        for launch, wanted in ((small, x[:, order]), (large, x[:2, order[::-1]])):
            got = bench.take("y", launch.views["y"], np.float32).reshape(wanted.shape)
            assert (got == wanted).all(), "a launch used the kernel or parameters of another"
        recording.close()

    def test_two_recordings_interleaved(self, bench: Bench) -> None:
        """Interleaved replays of two recordings must each run their own launches."""
        one = counter(bench)
        two = counter(bench, 2, 3)
        with bench.device.record() as first:
            one.run(bench.device)
        with bench.device.record() as second:
            two.run(bench.device)
            two.run(bench.device)
        for recording in (first, second, first, second, second):
            bench.device.replay(recording)
        assert (count(bench, one), count(bench, two)) == (2, 6), "replays of two recordings mixed up"
        first.close()
        second.close()

    def test_launches_see_the_results_of_earlier_ones(self, bench: Bench) -> None:
        """Each launch must see the results of the launch before, recorded or direct; a failure is a missing barrier."""
        rng = np.random.default_rng(1)
        x = rng.integers(-99, 99, (4, 300)).astype(np.float32)
        order = rng.permutation(300)
        there = permutation(bench, None, None, order, x)
        back = permutation(bench, there.views["y"], there.views["x"], order, x)
        with bench.device.record() as recording:
            for _ in range(8):
                there.run(bench.device)
                back.run(bench.device)
        want = x
        for mode in ("recorded", "direct"):
            if mode == "recorded":
                bench.device.replay(recording)
            else:
                for _ in range(8):
                    there.run(bench.device)
                    back.run(bench.device)
            for _ in range(16):
                want = want[:, order]
            got = bench.take("x", there.views["x"], np.float32).reshape(x.shape)
            assert (got == want).all(), f"{mode} launches did not wait for the ones before them"
        recording.close()

    def test_replays_and_direct_launches_keep_their_order(self, bench: Bench) -> None:
        """Replays, uploads, launches and downloads must take effect in the order of the calls."""
        ones = counter(bench)
        with bench.device.record() as recording:
            ones.run(bench.device)
        bench.device.replay(recording)
        ones.run(bench.device)
        assert count(bench, ones) == 2
        bench.device.replay(recording)
        bench.write(ones.views["y"], np.full(15, 7, dtype=np.float32))
        assert count(bench, ones) == 7, "a replay ran after an upload that was queued later"
        bench.device.replay(recording)
        assert count(bench, ones) == 8
        recording.close()

    def test_decoding_needs_no_host(self, bench: Bench) -> None:
        """Replays of argmax_advance must advance the row and fill the history without the host."""
        logits = np.zeros((1, 40), dtype=np.float32)
        logits[0, 17] = 5
        launch = CaseLaunch(
            {"rows": 1, "vocab": 40, "stride": 40, "max_blocks": 2, "ring": 6},
            {
                "logits": logits.reshape(-1),
                "mask": np.zeros(1, dtype=np.int32),
                "index": np.zeros(1, dtype=np.int32),
                "tables": np.array([4, 2], dtype=np.int32),
                "step": np.array([3, 61, 4 * 64 + 61, 0], dtype=np.int32),
                "history": np.zeros(7, dtype=np.int32),
            },
            {"MASK": 0},
        )
        advance = bench.prepare(ARGMAX_ADVANCE, launch)
        with bench.device.record() as recording:
            advance.run(bench.device)
        for _ in range(4):
            bench.device.replay(recording)
        step = bench.take("step", advance.views["step"], np.int32).tolist()
        history = bench.take("history", advance.views["history"], np.int32).tolist()
        assert step == [17, 65, 2 * 64 + 1, 0]
        assert history == [4, 17, 17, 17, 17, 0, 0]
        recording.close()

    def test_closing_a_recording(self, bench: Bench) -> None:
        """Closing twice must do nothing, and other recordings of the same launches must still work."""
        ones = counter(bench)
        with bench.device.record() as first:
            ones.run(bench.device)
        with bench.device.record() as second:
            ones.run(bench.device)
        bench.device.replay(first)
        first.close()
        first.close()
        bench.device.replay(second)
        assert count(bench, ones) == 2
        second.close()

    def test_an_error_while_recording_ends_it(self, bench: Bench) -> None:
        """An exception inside `record` must propagate and discard the recording; later launches must run."""
        ones = counter(bench)
        with pytest.raises(KeyError):
            self._abandon(bench, ones)
        ones.run(bench.device)
        assert count(bench, ones) == 1, "an abandoned recording keeps later launches, or ran its own"

    def _abandon(self, bench: Bench, ones: Prepared) -> None:
        with bench.device.record():
            ones.run(bench.device)
            raise KeyError

    def test_recordings_leave_nothing_behind(self, bench: Bench) -> None:
        """A thousand closed recordings must not grow the process."""
        ones = counter(bench)
        before = 0
        for cycle in range(1100):
            if cycle == 100:
                before = resident()
            with bench.device.record() as recording:
                for _ in range(5):
                    ones.run(bench.device)
            if cycle % 50 == 0:
                bench.device.replay(recording)
                bench.device.synchronize()
            recording.close()
        grown = resident() - before
        assert grown < 16 << 20, f"a thousand closed recordings left {grown:,} bytes in the process"

    def test_ten_thousand_dispatches_in_recordings_that_come_and_go(self, bench: Bench) -> None:
        """Driver objects of closed recordings (descriptor sets, commands, graphs) must be freed or reused."""
        ones = counter(bench)
        before = 0
        held = 0
        for cycle in range(SOAK):
            if cycle == SOAK // 10:  # the first recordings fill the driver's caches
                before = resident()
                held = bench.device.held_bytes()
            with bench.device.record() as recording:
                for _ in range(SOAK):
                    ones.run(bench.device)
            bench.device.replay(recording)
            bench.device.synchronize()
            recording.close()
        assert count(bench, ones) == SOAK * SOAK, "some of ten thousand launches did not run"
        grown = resident() - before
        kept = bench.device.held_bytes() - held
        assert max(grown, kept) < SOAK_GROWTH, f"{SOAK} closed recordings left {grown:,} bytes, {kept:,} on the device"
