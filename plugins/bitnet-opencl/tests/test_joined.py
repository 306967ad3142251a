"""Rotations that are joined to the product of their result: the same bits as two launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from bitnet_hal.device import DeviceType
from bitnet_hal.driver.enumerate import EnumeratedDevice
from bitnet_hal.testing.joined_rotations import ROTATIONS, RotatedProduct
from bitnet_opencl.describe import KNOWN
from bitnet_opencl.device import OpenCLDevice


@pytest.fixture(scope="module")
def device(session_device: OpenCLDevice) -> Iterator[OpenCLDevice]:
    """A device with NVIDIA's tunings and the portable sources."""
    device = OpenCLDevice(EnumeratedDevice(session_device._device, session_device.info))
    device._abilities = [*device._abilities, "-cl-opt-disable"]
    extra = {"max_group": 1024, "lanes": 32, "compute_units": 4, "nvidia": False, "ptx": True, "members": 1}
    device.info = replace(device.info, type=DeviceType.GPU, kernels=frozenset(KNOWN["kernels"]), extra=extra)
    yield device
    device.close()


@pytest.mark.parametrize("name", ROTATIONS)
@pytest.mark.parametrize(("add", "between"), [(0, False), (1, False), (0, True)])
def test_a_joined_product_has_the_bits_of_two_launches(
    device: OpenCLDevice, name: str, add: int, between: bool
) -> None:
    recording: Any = RotatedProduct(device, name, 70, add, between=between).check()
    assert recording.native[0].entry == f"{name}_product"
    assert len(recording.native) == 1 + between
    assert len(device.timings(recording)) == 2 + between
    recording.close()
