"""The catalogue's sizes of bindings equal those of the kit's operands, which are stated separately."""

from __future__ import annotations

import pytest
from bitnet_hal.checks import check_launch
from bitnet_hal.device import Tuning, View, whole
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.testing.cases.registry import cases_of

LOWER_BOUNDS = ("*", "cache rows", "sequences", "positions", "y_stride", "[rows, stride]")
"""Shapes for which the size is a minimum: buffers decide what a launch touches, or the last row may be short."""


SWITCHES = ("NORM", "QKNORM", "MASK", "KEEP")
"""Constants whose value 0 makes an operand unused."""


@pytest.mark.parametrize("kernel", list(CATALOGUE))
def test_every_binding_states_its_size(kernel: str) -> None:
    for case in cases_of(kernel):
        launch = case.launch()
        for binding in case.spec.bindings:
            needed = binding.nbytes(launch.params, launch.constants)
            there = launch.arrays[binding.name].nbytes
            if any(launch.constants[name] == 0 for name in SWITCHES if f"if {name} is 0" in binding.shape):
                assert needed == 0, f"{case.id}: {binding.name}"
            elif any(words in binding.shape for words in LOWER_BOUNDS):
                assert 0 < needed <= there, f"{case.id}: {binding.name}"
            else:
                assert needed == there, f"{case.id}: {binding.name}"


def test_the_message_says_what_is_missing() -> None:
    device = NumpyDevice()
    case = cases_of("rms_norm")[-1]
    launch = case.launch()
    views = [whole(device.alloc(array.nbytes)) for array in launch.arrays.values()]
    params = case.spec.pack(launch.params)
    kernel = device.compile(case.spec, launch.constants, Tuning())
    check_launch(kernel, (1, 1, 1), views, params, device.info)
    y = views[-1]
    views[-1] = View(y.buffer, 0, y.nbytes - 4)
    message = rf"rms_norm: y \[rows, width\] needs {y.nbytes} bytes, its view has {y.nbytes - 4}"
    with pytest.raises(ValueError, match=message):
        check_launch(kernel, (1, 1, 1), views, params, device.info)
