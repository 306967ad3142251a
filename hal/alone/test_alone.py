"""A plugin with bitnet-hal but without bitnet-core lists its device, compiles and runs kernels, and passes the kit.

`nox -s alone` builds both and runs this in a fresh environment; it fails if bitnet-core is installed.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from bitnet_hal.device import whole
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.selection import devices, open_device
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher
from bitnet_hal.reference.meanings import MEANINGS
from bitnet_hal.testing import BackendConformance

PLUGIN = "opencl"


class TestConformance(BackendConformance):
    """Every rule of the kit; those about whole models skip because they need bitnet-core."""

    backend = PLUGIN


def test_core_is_not_here() -> None:
    for name in ("bitnet_core", "rich", "typer", "tokenizers", "jinja2", "safetensors"):
        assert find_spec(name) is None, f"{name} is installed, so that this test proves nothing"


def test_the_contract_imports_nothing_else() -> None:
    """psutil and pytest are needed only by tests."""
    program = (
        "import sys; sys.modules.update(psutil=None, pytest=None)\n"
        "import importlib, pkgutil, bitnet_hal\n"
        "for found in pkgutil.walk_packages(bitnet_hal.__path__, 'bitnet_hal.'):\n"
        "    if not found.name.startswith('bitnet_hal.testing'): importlib.import_module(found.name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_device_is_listed_and_runs_a_kernel(request: pytest.FixtureRequest) -> None:
    if not any(info.backend == PLUGIN for info in devices()):
        absent = registry().failure(PLUGIN)
        assert absent is not None
        assert not request.config.getoption("--require-device"), absent.reason
        pytest.skip(absent.reason)
    device, summary = open_device(PLUGIN)
    assert summary.selected.backend == PLUGIN
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    gamma = np.ones(64, np.float32)
    params = {"rows": 2, "width": 64, "eps": 1e-5}
    spec = CATALOGUE["rms_norm"]
    arrays = {"x": x.reshape(-1), "index": np.array([1, 0], np.int32), "gamma": gamma, "y": np.zeros(128, np.float32)}
    wanted = {name: array.copy() for name, array in arrays.items()}
    MEANINGS[spec.name](wanted, params, {})
    views = []
    for binding in spec.bindings:
        buffer = device.alloc(arrays[binding.name].nbytes)
        views.append(whole(buffer))
        device.upload(views[-1], arrays[binding.name].data)
    launcher = Launcher(device)
    launcher.run([launcher.prepare(spec, params, views)])
    device.download(views[-1], arrays["y"].data)
    np.testing.assert_allclose(arrays["y"], wanted["y"], rtol=1e-5)
    device.close()
