"""The survey of a machine in one call."""

from __future__ import annotations

import pytest
from bitnet_hal.discovery.probe import probe


def test_backends_devices_and_reasons(install_plugin) -> None:
    install_plugin("vulkan")
    install_plugin(
        "opencl",
        "def no(self): raise BackendUnavailableError('no driver', backend='opencl')\nBackend.devices = no",
    )
    machine = probe()
    states = {state.name: state for state in machine.backends}
    assert [info.request for info in machine.gpus] == ["vulkan:0"]
    assert machine.preferred.request == "vulkan:0"
    assert (states["vulkan"].version, states["opencl"].reason) == ("1.2.3", "no driver")
    assert (states["cuda"].version, states["cuda"].reason) == ("", "not installed")
    lines = machine.summary().splitlines()
    assert lines[0] == "auto selects vulkan:0 (vulkan device 0)"
    assert "vulkan 1.2.3: vulkan:0 vulkan device 0 (gpu, )" in lines
    assert "cuda: not installed" in lines
    assert "opencl 1.2.3: no driver" in lines


def test_hidden_gpus_are_called_so(install_plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin("vulkan")
    monkeypatch.setenv("BITNET_GPU_FAKE", "none")
    machine = probe()
    assert machine.gpus == ()
    assert next(state for state in machine.backends if state.name == "vulkan").reason == "hidden"
