"""Measurements of `--bitnet-perf`: microseconds and GB/s of each kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bitnet_hal.testing.speed import Shape, SpeedResult, fits, measure
from bitnet_hal.testing.workbench import Bench


class SpeedRules:
    """Measurements, not rules; only `--bitnet-perf` runs them."""

    @pytest.mark.bitnet_perf
    def test_speed(self, bench: Bench, shape: Shape, keep_speed: Callable[[SpeedResult], None]) -> None:
        """Measure one launch at a shape of the 2B-4T model."""
        if not fits(bench, shape):
            pytest.skip(f"the operands ({shape.nbytes:,} bytes) do not fit on {bench.info.request}")
        keep_speed(measure(bench, shape))
