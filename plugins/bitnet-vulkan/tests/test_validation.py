"""The conformance kit under the validation layer with synchronization checks, which must report nothing.

The layer is chosen when the instance is made, so the runs are processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bitnet_hal.errors import BackendUnavailableError, GpuError
from bitnet_vulkan.driver import instance

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
LAYER = {
    "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
    "VK_LAYER_ENABLES": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT",
}
"""The layer writes its findings to the standard output."""


@pytest.fixture(scope="module", autouse=True)
def validation_layer() -> None:
    """Skip if the layer or a device is missing."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LAYER.items():
            patch.setenv(name, value)
        try:
            instance.__wrapped__()
        except (BackendUnavailableError, GpuError) as exc:
            pytest.skip(f"no validation layer (apt install vulkan-validationlayers mesa-vulkan-drivers): {exc}")


def run(code: list[str], **environment: str) -> str:
    """Return the output of a Python process."""
    variables = {**os.environ, **LAYER, **environment}
    result = subprocess.run([sys.executable, *code], capture_output=True, text=True, env=variables, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout + result.stderr


RULES = "not (ten_thousand or leave_nothing or shipped_model or beside_others or depend_on_other_requests)"
"""What the shipped model asks of the driver, the one with scales of blocks asks in a tenth of the time."""


@pytest.mark.parametrize(
    "selection",
    [f"{RULES} and not test_kernel", pytest.param(f"{RULES} and test_kernel", marks=pytest.mark.again)],
    ids=["rules", "kernels"],
)
def test_the_kit_is_silent_under_validation(selection: str) -> None:
    options = ["-q", "-s", "-p", "no:cacheprovider", "-k", selection]
    output = run(["-m", "pytest", *options, str(HERE / "test_conformance.py")])
    assert " passed" in output
    assert "Validation" not in output


RACE = """
from bitnet_hal.device import View
from bitnet_vulkan.plugin import bitnet_backend
from bitnet_vulkan.recording import Commands
device = bitnet_backend().open(0)
buffers = [device.alloc(4096) for _ in range(3)]
device.synchronize()
if {broken}:
    Commands.follow = lambda self, stage: self.handle
for source, target in ((0, 1), (1, 2), (0, 1)):
    device.copy(View(buffers[source], 0, 4096), View(buffers[target], 0, 4096))
device.synchronize()
device.close()
"""


def test_a_left_out_barrier_is_reported() -> None:
    """The check above can fail: without its barriers the same device is not silent."""
    assert "Validation" not in run(["-c", RACE.format(broken=False)])
    assert "SYNC-HAZARD" in run(["-c", RACE.format(broken=True)])
