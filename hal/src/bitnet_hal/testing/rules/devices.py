"""Rules about devices: their description, several devices at once, and cleanup on close."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from bitnet_hal.base import LOGGED_BYTES
from bitnet_hal.device import whole
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.base import MATMUL_TERNARY
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.testing.resident import resident
from bitnet_hal.testing.rules.recordings import count, counter
from bitnet_hal.testing.workbench import Bench

METHODS = {
    "timings": "timings",
    "tunings": "tunings",
    "invariant-tunings": "invariant_tuning",
    "compile-ahead": "compile_ahead",
    "async-readback": "read_async",
    "replay-many": "replay_many",
    "peer-copy": "copy_from",
    "sensors": "sensors",
    "kernel-resources": "kernel_resources",
}
"""The method of a device by feature."""
OPENINGS = 6
GROWTH_PER_OPENING = 8 << 20
HELD = 16 << 20
"""Bytes that each opened device allocates, and must free when it closes."""


class DeviceRules:
    """Rules about DeviceInfo, two open devices, opening and closing."""

    def test_info_is_sound(self, bench: Bench) -> None:
        """DeviceInfo must have a name, sizes and a valid alignment, and the open device must report the same one.

        Kernels and features that are unknown to this version of the contract are allowed.
        """
        info = bench.info
        assert (info.backend, info.index) == (bench.backend.name, bench.index)
        assert info.name, "the device has no name"
        assert 4 <= info.alignment <= 4096, f"alignment is {info.alignment}, not 4 to 4096"
        assert info.alignment & (info.alignment - 1) == 0, f"alignment {info.alignment} is not a power of two"
        assert min(info.total_memory, info.max_allocation, info.max_binding) >= 0
        assert min(info.max_grid) >= 0
        base = {spec.name for spec in CATALOGUE.values() if spec.base}
        assert not info.kernels & base, (
            f"DeviceInfo.kernels must name only optional kernels, not {sorted(info.kernels & base)}"
        )
        for name in info.features & METHODS.keys():
            method = METHODS[name]
            assert hasattr(bench.device, method), f"the device claims the feature '{name}' but has no method {method}"
        assert bench.device.info == info, "the open device's info differs from the one that its backend lists"

    def test_the_log_says_what_happens(
        self, bench: Bench, caplog: pytest.LogCaptureFixture, entry_point: tuple[str, str] | None
    ) -> None:
        """The plugin must log under its package's name: the opened device at level info; compilations, large
        allocations and failures at level debug.

        `BITNET_LOG=bitnet_vulkan=debug` then shows them. Devices derived from BaseDevice do so.
        """
        package = entry_point[1].partition(".")[0] if entry_point else ""
        with caplog.at_level(logging.DEBUG, package or None):
            other = bench.second()
            try:
                other.device.free(other.device.alloc(LOGGED_BYTES + 16))
                unknown = dataclasses.replace(MATMUL_TERNARY, name="no_such_kernel")
                with pytest.raises(UnsupportedError):
                    other.device.compile(unknown, {"ADD": 0}, counter(other).kernel.tuning)
            finally:
                other.close()
        said = [record for record in caplog.records if record.name.partition(".")[0] == package or not package]
        opened = [record for record in said if bench.info.name in record.getMessage()]
        assert any(record.levelno == logging.INFO for record in opened), f"no line of {package} names the device"
        text = "\n".join(record.getMessage() for record in said)
        for word in (f"{LOGGED_BYTES + 16:,}", "compile", "no_such_kernel"):
            assert word in text, f"{package or 'the plugin'} logs nothing with '{word}': {text[:500]}"

    def test_listing_devices_is_repeatable(self, bench: Bench) -> None:
        """`Backend.devices` must return the same devices in the same order each time."""
        assert list(bench.backend.devices()) == list(bench.backend.devices())

    def test_two_devices_at_once(self, bench: Bench) -> None:
        """Two open devices must not share buffers, and closing one must not affect the other."""
        other = bench.second()
        try:
            mine = counter(bench)
            theirs = counter(other)
            mine.run(bench.device)
            theirs.run(other.device)
            theirs.run(other.device)
            assert (count(bench, mine), count(other, theirs)) == (1, 2)
            with pytest.raises(ValueError):
                bench.device.free(theirs.views["y"].buffer)
        finally:
            other.close()
        mine.run(bench.device)
        assert count(bench, mine) == 2, "closing another device affected this one"

    def test_closing_gives_everything_back(self, bench: Bench) -> None:
        """`close` must free buffers, kernels and recordings that are still in use; a failure is a memory leak."""
        before = 0
        for opening in range(OPENINGS + 2):
            if opening == 2:
                before = resident()
            other = bench.second()
            held = whole(other.device.alloc(HELD))
            other.device.upload(held, memoryview(b"\1" * HELD))
            ones = counter(other)
            with other.device.record():
                ones.run(other.device)
            ones.run(other.device)
            assert count(other, ones) == 1
            del held, ones
            other.close()
        grown = resident() - before
        allowed = OPENINGS * GROWTH_PER_OPENING
        assert grown < allowed, f"{OPENINGS} devices, opened and closed, left {grown:,} bytes in the process"
