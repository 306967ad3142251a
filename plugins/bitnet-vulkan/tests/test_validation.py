"""The conformance kit under the validation layer with synchronization checks: it must have nothing to say.

The layer is chosen when the instance is made, so the runs are processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bitnet_core.errors import BackendUnavailableError, GpuError
from bitnet_vulkan.instance import Instance

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def validation_layer() -> None:
    """Skip where the layer (or a device) is missing."""
    try:
        with Instance(validate=True) as instance:
            instance.physical_devices()
    except BackendUnavailableError as exc:
        pytest.skip(str(exc))
    except GpuError as exc:
        pytest.skip(f"no validation layer: {exc}")


def run(code: list[str], **environment: str) -> str:
    """Output of a Python process."""
    variables = {**os.environ, **environment}
    result = subprocess.run([sys.executable, *code], capture_output=True, text=True, env=variables, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout + result.stderr


def test_the_kit_is_silent_under_validation() -> None:
    selection = "not ten_thousand and not leave_nothing"
    options = ["-q", "-p", "no:cacheprovider", "-o", "log_cli=true", "-o", "log_cli_level=ERROR", "-k", selection]
    output = run(["-m", "pytest", *options, str(HERE / "test_conformance.py")], BITNET_VULKAN_VALIDATE="1")
    assert " passed" in output
    assert "validation:" not in output


RACE = """
import logging
logging.basicConfig(level=logging.ERROR)
from bitnet_core.hal import View
from bitnet_vulkan.device import VulkanDevice
from bitnet_vulkan.hazards import Hazards
device = VulkanDevice(0, validate=True)
buffers = [device.alloc(4096) for _ in range(3)]
device.synchronize()
if {broken}:
    Hazards.before = lambda self, commands, reads, writes, copy: None
for source, target in ((0, 1), (1, 2), (0, 1)):
    device.copy(View(buffers[source], 0, 4096), View(buffers[target], 0, 4096))
device.synchronize()
device.close()
"""


def test_a_left_out_barrier_is_reported() -> None:
    """The check above can fail: without its barriers the same device is not silent."""
    assert "validation:" not in run(["-c", RACE.format(broken=False)])
    assert "SYNC-HAZARD" in run(["-c", RACE.format(broken=True)])
