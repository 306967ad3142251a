"""Rules about optional features: timings, several replays by one call, asynchronous readback, sensors, and resources of
kernels."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from bitnet_hal.device import whole
from bitnet_hal.features import KERNEL_RESOURCES, MAX_ASYNC_READ, SENSORS
from bitnet_hal.testing.rules.recordings import count, counter, permutation
from bitnet_hal.testing.workbench import Bench

LEAST_SHARE = 50
"""Maximum ratio of a replay's wall time to the device time of its launches; starting a replay takes some tens of us."""


class FeatureRules:
    """Rules about features with methods; a device without the feature skips them."""

    def test_sensors(self, bench: Bench) -> None:
        """With the feature "sensors", `sensors` must return numbers of 0 or more by names in SENSORS."""
        if "sensors" not in bench.device.info.features:
            pytest.skip('the device does not claim "sensors"')
        readings = bench.device.sensors()  # type: ignore[attr-defined]  # a SensorDevice, as the feature says
        assert readings.keys() <= SENSORS.keys()
        assert all(0 <= value < 1e6 for value in readings.values()), f"not in the units of SENSORS: {readings}"

    def test_kernel_resources(self, bench: Bench) -> None:
        """With the feature "kernel-resources", `kernel_resources` must return numbers by names in KERNEL_RESOURCES."""
        if "kernel-resources" not in bench.device.info.features:
            pytest.skip('the device does not claim "kernel-resources"')
        device: Any = bench.device  # a KernelResourcesDevice, as the feature says
        used = device.kernel_resources(counter(bench).kernel)
        assert used, "the device claims the feature but reports no resources"
        assert used.keys() <= KERNEL_RESOURCES.keys()
        assert min(used.values()) >= 0
        assert 0 < used.get("occupancy", 1) <= 1, f"occupancy is a share: {used}"

    def test_timings(self, bench: Bench) -> None:
        """With the feature "timings", `timings` must replay once and return each launch's name and seconds in order."""
        if "timings" not in bench.info.features:
            pytest.skip('the device does not claim "timings"')
        ones = counter(bench)
        shuffle = permutation(bench, None, None, np.array([1, 0]), np.ones((1, 2), dtype=np.float32))
        with bench.device.record() as recording:
            ones.run(bench.device)
            shuffle.run(bench.device)
            ones.run(bench.device)
        timed = bench.device.timings(recording)  # type: ignore[attr-defined]  # a TimedDevice, as the feature says
        assert [name for name, _ in timed] == ["matmul_ternary", "matmul_dense", "matmul_ternary"]
        assert all(0 < seconds < 60 for _, seconds in timed), f"times are seconds, above 0: {timed}"
        assert count(bench, ones) == 2, "timings must replay once"
        recording.close()

    def test_timings_agree_with_the_clock_on_the_wall(self, bench: Bench) -> None:
        """With the feature "timings", the sum of times must not exceed the call's wall time, nor be far below a
        replay's.

        A failure usually means a wrong unit.
        """
        if "timings" not in bench.info.features:
            pytest.skip('the device does not claim "timings"')
        order = np.random.default_rng(1).permutation(512)
        busy = permutation(bench, None, None, order, np.ones((8, 512), dtype=np.float32))
        with bench.device.record() as recording:
            for _ in range(16):
                busy.run(bench.device)
        replays = []
        shares = []
        for _ in range(3):
            began = time.perf_counter()
            bench.device.replay(recording)
            bench.device.synchronize()
            replays.append(time.perf_counter() - began)
            began = time.perf_counter()
            timed = bench.device.timings(recording)  # type: ignore[attr-defined]  # a TimedDevice, as the feature says
            took = time.perf_counter() - began
            total = sum(seconds for _, seconds in timed)
            assert total <= took, f"launches of {total:.3g} s in a call that took {took:.3g} s"
            shares.append(total)
        assert max(shares) > min(replays) / LEAST_SHARE, (
            f"launches take {max(shares):.3g} s by the device's clock, and their replay takes {min(replays):.3g} s"
        )
        recording.close()

    def test_compiling_ahead(self, bench: Bench) -> None:
        """With the feature "compile-ahead", `compile` after `compile_ahead` must return a kernel that works, once and
        again."""
        if "compile-ahead" not in bench.info.features:
            pytest.skip('the device does not claim "compile-ahead"')
        device: Any = bench.device  # an AheadCompilingDevice, as the feature says
        ones = counter(bench)
        kernel = ones.kernel
        for runs in (1, 2):
            device.compile_ahead(kernel.spec, kernel.constants, kernel.tuning)
            device.compile_ahead(kernel.spec, kernel.constants, kernel.tuning)
            again = device.compile(kernel.spec, kernel.constants, kernel.tuning)
            device.launch(again, ones.grid, ones.bound, ones.params)
            assert count(bench, ones) == runs, "the kernel that was compiled ahead does not do its work"
            device.release(again)

    def test_many_replays(self, bench: Bench) -> None:
        """With the feature "replay-many", `replay_many` must run a recording `times` times, in order with the work
        queued before and after it."""
        if "replay-many" not in bench.device.info.features:
            pytest.skip('the device does not claim "replay-many"')
        device: Any = bench.device  # a RepeatingDevice, as the feature says
        ones = counter(bench)
        with device.record() as recording:
            ones.run(device)
            ones.run(device)
        total = 0
        for times in (1, 32, 3):
            device.replay(recording)
            device.replay_many(recording, times)
            total += 2 * (1 + times)
            assert count(bench, ones) == total, f"the count is wrong after one replay and {times} by one call"
        recording.close()
        with pytest.raises(ValueError):
            device.replay_many(recording, 1)

    def test_reading(self, bench: Bench) -> None:
        """With the feature "async-readback", each of two pending reads must return the contents as of its place in the
        queue."""
        if "async-readback" not in bench.info.features:
            pytest.skip('the device does not claim "async-readback"')
        device: Any = bench.device
        ones = counter(bench)
        found = np.empty((2, 15), np.float32)
        with device.record() as recording:
            ones.run(device)
        for cycle in range(3):
            reads = []
            for _ in range(2):
                for _ in range(50):
                    device.replay(recording)
                reads.append(device.read_async(ones.views["y"]))
            device.replay(recording)
            for row, read in zip(found, reads, strict=True):
                read(row.data.cast("B"))
            before = 101 * cycle
            assert (found == [[before + 50], [before + 100]]).all(), (
                f"not the contents as of the read's place in the queue: {found}"
            )
            assert count(bench, ones) == before + 101
        with pytest.raises(ValueError):
            device.read_async(ones.views["y"])(memoryview(bytearray(4)))
        large = device.alloc(MAX_ASYNC_READ + 4)
        data = np.random.default_rng(1).bytes(MAX_ASYNC_READ)
        device.upload(whole(large).part(4, MAX_ASYNC_READ), memoryview(data))
        read = device.read_async(whole(large).part(4, MAX_ASYNC_READ))
        held = bytearray(MAX_ASYNC_READ)
        device.upload(whole(large), memoryview(bytes(MAX_ASYNC_READ + 4)))
        read(memoryview(held))
        assert held == data, "not the contents as of the read's place in the queue"
        with pytest.raises(ValueError):
            device.read_async(whole(large))
        device.free(large)
        recording.close()
