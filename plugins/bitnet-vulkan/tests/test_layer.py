"""decoder_layer with a single workgroup, and its error if workgroups did not meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from bitnet_hal.device import Buffer, View, whole
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.launcher import Launcher
from bitnet_hal.testing.cases.case import Arrays, Case, expected
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.compare import check_outputs
from bitnet_hal.tuning.query import FEW_ROWS
from bitnet_vulkan.describe import offered
from bitnet_vulkan.device import VulkanDevice
from bitnet_vulkan.tuning import MAX_LAYER_ROWS

pytestmark = pytest.mark.slow

LOST = 256
"""Word of the workspace, as in meeting.glsl."""


@pytest.fixture
def launcher(device: VulkanDevice) -> Iterator[Launcher]:
    """Return the launcher of a device with one multiprocessor."""
    able = device.info.extra
    if not able["subgroups"]:
        pytest.skip("the layer kernel needs subgroups")
    able = {**able, "resident": able["resident"] or 1}
    device.info = replace(device.info, kernels=offered("kernels", able), extra=able)
    return Launcher(device)


def run(launcher: Launcher, case: Case, *, spoiled: bool = False) -> tuple[Arrays, Buffer | None]:
    """Return every binding after the launch, and the workspace."""
    device, launch, views = launcher.device, case.launch(), []
    for binding in case.spec.bindings:
        array = launch.arrays[binding.name]
        views.append(whole(device.alloc(array.nbytes)))
        device.upload(views[-1], array.view(np.uint8).data)
    compiled, _ = launcher.compiled(case.spec, launch.params, launch.constants)
    if spoiled:
        assert compiled.workspace is not None
        flag = np.ones(1, np.uint32)
        device.upload(View(compiled.workspace, 4 * LOST, 4), flag.view(np.uint8).data)
    launcher.run([launcher.prepare(case.spec, launch.params, views, launch.constants)])
    made = {}
    for binding, view in zip(case.spec.bindings, views, strict=True):
        made[binding.name] = np.empty_like(launch.arrays[binding.name])
        device.download(view, made[binding.name].view(np.uint8).data)
        device.free(view.buffer)
    return made, compiled.workspace


CASES = [
    pytest.param(case, id=case.label, marks=pytest.mark.again if case.label.endswith("large") else ())
    for case in cases_of("decoder_layer")
]


@pytest.mark.parametrize("case", CASES)
def test_layers(launcher: Launcher, case: Case) -> None:
    launch = case.launch()
    if launch.params["rows"] > (MAX_LAYER_ROWS if launch.constants["BLOCK"] else FEW_ROWS):
        with pytest.raises(UnsupportedError, match="faster as separate launches"):
            run(launcher, case)
        return
    made, workspace = run(launcher, case)
    check_outputs(case, launch, expected(case.spec, launch), made)
    assert workspace is not None
    counters = np.empty(LOST + 1, np.uint32)
    launcher.device.download(View(workspace, 0, counters.nbytes), counters.view(np.uint8).data)
    assert not counters[32 * 3 + 1 :].any()  # the last meeting's count is taken back by the next launch
    again, _ = run(launcher, case)
    assert np.array_equal(again["x"], made["x"], equal_nan=True)


def test_a_dispatch_that_gave_up_spoils_later_ones(launcher: Launcher) -> None:
    """A CPU cannot produce workgroups that never meet, so the flag that they leave behind is written instead."""
    case = cases_of("decoder_layer")[0]
    assert not np.isnan(run(launcher, case)[0]["x"]).any()
    assert np.isnan(run(launcher, case, spoiled=True)[0]["x"]).all()
