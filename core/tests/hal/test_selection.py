"""Which device a request gets."""

from __future__ import annotations

import logging

import pytest
from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceNotFoundError,
    LaunchError,
    StrictModeError,
    UsageError,
)
from bitnet_core.hal.device import DeviceInfo, DeviceType
from bitnet_core.hal.discovery import registry
from bitnet_core.hal.request import DeviceRequest
from bitnet_core.hal.selection import devices, gpu_available, next_device, open_device, ranked

CPU = "Backend.devices = lambda self: [DeviceInfo('cpu', 0, 'native', DeviceType.CPU)]"
SOFTWARE = "Backend.devices = lambda self: [DeviceInfo(self.name, 0, 'llvmpipe', DeviceType.SOFTWARE)]"
SAME_CARD = """
Backend.devices = lambda self: [DeviceInfo(self.name, 0, 'card', DeviceType.GPU, physical_id='0000:03:00.0')]
"""
DOES_NOT_OPEN = """
def fail(self, index):
    raise GpuError("context refused", backend=self.name, code="VENDOR_EIO (-7)")
Backend.open = fail
"""


def selected(request: str | DeviceRequest | None = None) -> str:
    device, summary = open_device(request)
    assert device.info == summary.selected
    return summary.selected.request


def test_bare_machine() -> None:
    _, summary = open_device()
    assert str(summary) == "requested=auto detected=[numpy] selected=numpy"
    assert summary.compute_path == "real"
    assert selected("cpu") == "numpy:0"
    assert not gpu_available()


def test_the_startup_line_is_logged_exactly(install_plugin, caplog: pytest.LogCaptureFixture) -> None:
    install_plugin("opencl")
    install_plugin("level-zero")
    install_plugin("cpu", CPU)
    caplog.set_level(logging.INFO)
    open_device()
    assert "requested=auto detected=[level-zero,opencl,cpu] selected=level-zero" in caplog.messages


def test_rank_of_all_backends(install_plugin) -> None:
    order = ["cuda", "rocm", "level-zero", "opencl", "vulkan", "metal", "webgpu", "other"]
    for name in reversed(order):
        install_plugin(name)
    install_plugin("cpu", CPU)
    assert [info.backend for info in ranked(devices())] == [*order, "cpu", "numpy"]


def test_software_devices_rank_below_the_native_cpu(install_plugin) -> None:
    install_plugin("vulkan", SOFTWARE)
    assert [info.backend for info in ranked(devices())] == ["vulkan", "numpy"]
    install_plugin("cpu", CPU)
    assert [info.backend for info in ranked(devices())] == ["cpu", "vulkan", "numpy"]
    with pytest.raises(DeviceNotFoundError):
        open_device("gpu")
    assert selected("vulkan") == "vulkan:0"


def test_one_card_seen_by_two_backends_counts_once(install_plugin) -> None:
    install_plugin("vulkan", SAME_CARD)
    install_plugin("opencl", SAME_CARD)
    assert [info.backend for info in ranked(devices())] == ["opencl", "numpy"]
    assert selected("vulkan") == "vulkan:0"


def test_a_discrete_card_comes_before_an_integrated_one() -> None:
    integrated = DeviceInfo("vulkan", 0, "integrated", DeviceType.INTEGRATED)
    discrete = DeviceInfo("vulkan", 1, "discrete", DeviceType.GPU)
    assert ranked([integrated, discrete]) == [discrete, integrated]


def test_index(install_plugin) -> None:
    install_plugin("cuda", count=2)
    _, summary = open_device("cuda:1")
    assert str(summary) == "requested=cuda:1 detected=[cuda] selected=cuda:1"
    with pytest.raises(DeviceNotFoundError, match="Present: cuda:0, cuda:1"):
        open_device("cuda:2")


def test_cpu_prefers_the_native_backend(install_plugin) -> None:
    install_plugin("cpu", CPU)
    assert selected("cpu") == "cpu:0"
    assert selected("numpy") == "numpy:0"


def test_only_the_named_backend_loads_its_driver(install_plugin) -> None:
    install_plugin("cuda", "Backend.devices = lambda self: 1 / 0")
    assert selected("numpy") == "numpy:0"
    assert selected("cpu") == "numpy:0"
    assert registry().failure("cuda") is None


def test_auto_goes_on_when_a_device_does_not_open(install_plugin, caplog: pytest.LogCaptureFixture) -> None:
    install_plugin("cuda", DOES_NOT_OPEN)
    _, summary = open_device()
    assert summary.selected.backend == "numpy"
    assert summary.compute_path == "fallback"
    assert "context refused" in summary.skipped[0][1]
    assert "trying the next device" in caplog.text


@pytest.mark.parametrize("request_text", ["cuda", "cuda:0", "gpu"])
def test_an_explicit_request_does_not_fall_back(install_plugin, request_text: str) -> None:
    install_plugin("cuda", DOES_NOT_OPEN)
    with pytest.raises(Exception, match="context refused") as caught:
        open_device(request_text)
    assert not isinstance(caught.value, LaunchError)


@pytest.mark.parametrize(
    ("request_text", "message"),
    [
        ("cuda", "pip install bitnet-cuda"),
        ("level-zero", "'level-zero' is not installed. The packages of this project are bitnet-cuda, bitnet-opencl"),
        ("cpu:0", "pip install bitnet-cpu"),
        ("gpu", "pip install bitnet-cuda or bitnet-opencl or bitnet-vulkan"),
        ("nosuch", "no backend 'nosuch'"),
        ("numpy:7", "no device numpy:7"),
    ],
)
def test_what_is_missing_and_what_to_install(request_text: str, message: str) -> None:
    with pytest.raises(DeviceNotFoundError, match=message) as caught:
        open_device(request_text)
    assert caught.value.exit_code == 11


def test_a_quarantined_backend_asked_for_by_name_raises_its_reason(install_plugin) -> None:
    install_plugin("cuda", "Backend.devices = lambda self: 1 / 0")
    with pytest.raises(BackendUnavailableError, match="ZeroDivisionError") as caught:
        open_device("cuda")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_environment_chooses_for_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_DEVICE", "cuda")
    with pytest.raises(DeviceNotFoundError):
        open_device("auto")
    assert selected(DeviceRequest("auto")) == "numpy:0"
    assert selected("numpy") == "numpy:0"


def test_a_plugin_chooses_among_what_fits(install_plugin) -> None:
    install_plugin("cuda", count=2)
    policy = """
    @hookimpl
    def bitnet_select_device(devices, request):
        return devices[-1] if request.name == "cuda" else None
    """
    install_plugin("policy", policy)
    assert selected("cuda") == "cuda:1"
    assert selected("gpu") == "cuda:0"


@pytest.mark.parametrize("body", ["raise KeyError('x')", "return 'cuda:0'"])
def test_a_failing_policy_is_passed_over(install_plugin, body: str, caplog: pytest.LogCaptureFixture) -> None:
    install_plugin("cuda", f"@hookimpl\ndef bitnet_select_device(devices):\n    {body}\n", count=2)
    assert selected() == "cuda:0"
    assert "plugin cuda" in caplog.text


def test_next_device_after_a_loss(install_plugin) -> None:
    install_plugin("cuda", SAME_CARD)
    install_plugin("vulkan", SAME_CARD)
    install_plugin("opencl", count=2)
    lost = devices(["opencl"])[0]
    assert [info.request for info in next_device(lost)] == ["opencl:1", "numpy:0"]
    lost = devices(["cuda"])[0]
    assert [info.request for info in next_device(lost)] == ["opencl:0", "opencl:1", "numpy:0"]


def test_fake_devices(install_plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin("opencl")
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda,hip")
    device, summary = open_device()
    assert str(summary) == "requested=auto detected=[cuda,rocm,numpy] selected=cuda"
    assert summary.compute_path == "mock"
    assert device.info.fake
    assert gpu_available()
    assert selected("rocm") == "rocm:0"
    with pytest.raises(DeviceNotFoundError, match="hides 'opencl'"):
        open_device("opencl")


@pytest.mark.parametrize("text", ["", "none"])
def test_fakes_can_hide_every_gpu(install_plugin, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    install_plugin("cuda")
    monkeypatch.setenv("BITNET_GPU_FAKE", text)
    assert selected() == "numpy:0"
    assert not gpu_available()


@pytest.mark.parametrize("text", ["numpy", "nosuch", "cuda,none", "cuda:x"])
def test_a_wrong_fake_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", text)
    with pytest.raises(UsageError):
        devices()


def test_strict_mode_ignores_fakes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda")
    monkeypatch.setenv("BITNET_STRICT_MODE", "1")
    assert selected() == "numpy:0"
    assert "BITNET_GPU_FAKE=cuda is ignored" in caplog.text


def test_no_fake_gpu_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda")
    monkeypatch.setenv("BITNET_STRICT_NO_FAKE_GPU", "1")
    with pytest.raises(StrictModeError):
        open_device()
    monkeypatch.setenv("BITNET_GPU_FAKE", "none")
    assert selected() == "numpy:0"
