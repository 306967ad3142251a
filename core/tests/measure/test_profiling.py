"""Profiles of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bitnet_core.measure.profiling import profile
from bitnet_hal.errors import UsageError
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice


def test_profile_of_a_device_without_a_clock() -> None:
    class Engine:
        device = NumpyDevice(replace(numpy_info(), features=frozenset()))

    with pytest.raises(UsageError, match="cannot time"):
        profile(Engine())
