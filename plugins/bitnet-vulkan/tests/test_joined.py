"""Rotations that are joined to the product of their result: the same bits as two dispatches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bitnet_hal.device import DeviceType
from bitnet_hal.testing.joined_rotations import ROTATIONS, RotatedProduct
from bitnet_vulkan.device import VulkanDevice

OUTS = 50
"""Matrix rows of one workgroup: after 65,535 iterations, in which another one waits, llvmpipe ends all later loops."""


@pytest.mark.parametrize("name", ROTATIONS)
@pytest.mark.parametrize(("add", "between"), [(0, False), (1, False), (0, True)])
def test_a_joined_product_has_the_bits_of_two_dispatches(
    device: VulkanDevice, name: str, add: int, between: bool
) -> None:
    if not device.info.extra["subgroups"]:
        pytest.skip("the product of one row needs subgroups")
    device.info = replace(device.info, type=DeviceType.GPU, extra={**device.info.extra, "resident": 1})
    recording: Any = RotatedProduct(device, name, OUTS, add, between=between).check()
    joined = device._submitted_launches(recording.launches)
    assert joined[0].kernel.tuning.source(name) == f"{name}_product"
    assert len(joined) == 1 + between
    assert len(device.timings(recording)) == 2 + between
    recording.close()
