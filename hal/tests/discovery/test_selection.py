"""The device selected for a request."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.discovery import listing
from bitnet_hal.discovery.known import AMD, backends_here, install_hint
from bitnet_hal.discovery.opening import Opening
from bitnet_hal.discovery.order import ranked
from bitnet_hal.discovery.quarantine import Stage
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.request import AUTO, DeviceRequest
from bitnet_hal.discovery.selection import (
    BackendStartupSummary,
    devices,
    every_device,
    gpu_available,
    next_devices,
    open_device,
)
from bitnet_hal.errors import (
    BackendIncompatibleError,
    BackendUnavailableError,
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
    KernelCompileError,
    LaunchError,
    StrictModeError,
    UsageError,
)

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


def test_a_stranger_may_outrank_a_known_backend(install_plugin) -> None:
    install_plugin("cuda")
    install_plugin("stranger", "Backend.rank = 101")
    install_plugin("modest", "Backend.rank = 41")
    install_plugin("cpu", CPU)
    install_plugin("dsp", CPU.replace("'cpu'", "'dsp'") + "\nBackend.rank = 21")
    assert [info.backend for info in ranked(devices())] == ["stranger", "cuda", "modest", "dsp", "cpu", "numpy"]
    assert selected() == "stranger:0"


def test_a_software_device_cannot_raise_its_rank(install_plugin) -> None:
    install_plugin("vulkan", SOFTWARE + "\nBackend.rank = 200")
    install_plugin("cpu", CPU)
    assert [info.backend for info in ranked(devices())] == ["cpu", "vulkan", "numpy"]


@pytest.mark.parametrize("wrong", ["'high'", "True", "None", "1.5"])
def test_a_rank_that_is_no_int_is_refused(install_plugin, wrong: str) -> None:
    install_plugin("stranger", f"Backend.rank = {wrong}")
    with pytest.raises(BackendIncompatibleError, match=f"its rank is {wrong}, not an int"):
        open_device("stranger")
    assert selected() == "numpy:0"


def test_the_hint_names_what_makes_sense_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert install_hint(*backends_here()) == "pip install ./plugins/bitnet-metal or ./plugins/bitnet-webgpu"
    monkeypatch.setattr("sys.platform", "linux")
    assert install_hint(*backends_here(AMD)) == "pip install " + " or ".join(
        f"./plugins/bitnet-{name}" for name in ("rocm", "opencl", "vulkan")
    )
    assert "metal" not in install_hint(*backends_here())


def test_software_devices_rank_below_the_native_cpu(install_plugin) -> None:
    install_plugin("vulkan", SOFTWARE)
    assert [info.backend for info in ranked(devices())] == ["vulkan", "numpy"]
    install_plugin("cpu", CPU)
    assert [info.backend for info in ranked(devices())] == ["cpu", "vulkan", "numpy"]
    with pytest.raises(DeviceNotFoundError):
        open_device("gpu")
    assert selected("vulkan") == "vulkan:0"


def test_every_device_is_each_card_once_and_the_best_cpu(install_plugin) -> None:
    assert [info.request for info in every_device()] == ["numpy:0"]
    install_plugin("webgpu", SOFTWARE)
    install_plugin("vulkan", SAME_CARD)
    install_plugin("opencl", SAME_CARD)
    assert [info.request for info in every_device()] == ["opencl:0"]
    install_plugin("cpu", CPU)
    assert [info.request for info in every_device()] == ["opencl:0", "cpu:0"]


def test_one_card_seen_by_two_backends_counts_once(install_plugin) -> None:
    install_plugin("vulkan", SAME_CARD)
    install_plugin("opencl", SAME_CARD)
    assert [info.backend for info in ranked(devices())] == ["opencl", "numpy"]
    assert selected("vulkan") == "vulkan:0"


@pytest.mark.parametrize("slots", [("00.6", "00.7", "01.0", "01.1"), ("06.0", "07.0", "08.0", "09.0")])
def test_four_cards_of_nvidia_count_once_whatever_its_opencl_takes_for_a_slot(slots: tuple[str, ...]) -> None:
    def card(backend: str, index: int, slot: str) -> DeviceInfo:
        name = "NVIDIA H200"
        return DeviceInfo(backend, index, name, DeviceType.GPU, vendor="NVIDIA", physical_id=f"0000:00:{slot}")

    right = ("06.0", "07.0", "08.0", "09.0")
    seen = [card(backend, i, slot) for backend in ("cuda", "vulkan") for i, slot in enumerate(right)]
    seen += [card("opencl", i, slot) for i, slot in enumerate(slots)]
    assert [info.request for info in ranked(seen)] == [f"cuda:{i}" for i in range(4)]
    without = [info for info in seen if info.backend != "cuda"]
    assert [info.request for info in ranked(without)] == [f"opencl:{i}" for i in range(4)]
    amd = replace(card("opencl", 0, "00.6"), vendor="AMD", name="gfx1100")
    assert len(ranked([card("cuda", 0, "06.0"), amd])) == 2


def test_a_card_is_named_by_its_address_or_uuid(install_plugin) -> None:
    install_plugin("cuda", SAME_CARD)
    device = "DeviceInfo('vulkan', 0, 'x', DeviceType.GPU, extra={'uuid': 'GPU-8BAD-F00D'})"
    install_plugin("vulkan", f"Backend.devices = lambda self: [{device}]")
    assert selected("cuda:0000:03:00.0") == "cuda:0"
    assert selected("gpu:0000:03:00.0") == "cuda:0"
    assert selected("gpu:8badf00d") == selected("gpu:GPU-8bad-f00d") == selected("vulkan:8bad-f00d") == "vulkan:0"
    for request in ("cuda:0000:04:00.0", "gpu:0000:04:00.0", "vulkan:0000:03:00.0"):
        with pytest.raises(DeviceNotFoundError, match=r"04:00\.0|03:00\.0"):
            open_device(request)


@pytest.mark.parametrize(
    ("name", "reason"), [("npu", "reserved"), ("opengl", "OpenGL has no backend"), ("webgl2", "no compute shaders")]
)
def test_what_has_no_backend_is_refused_for_what_it_is(install_plugin, name: str, reason: str) -> None:
    with pytest.raises(DeviceNotFoundError, match=reason):
        open_device(name)
    install_plugin(name)
    if name == "npu":
        assert registry().quarantined[0].stage is Stage.NAME
    else:
        assert selected(name) == f"{name}:0"


def test_without_fallback_the_first_choice_counts(install_plugin) -> None:
    install_plugin("cuda", DOES_NOT_OPEN)
    assert open_device("auto")[1].selected.backend == "numpy"
    with pytest.raises(GpuError, match="context refused"):
        open_device("auto", fallback=False)


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
    assert "falling back to numpy:0" in caplog.text


@pytest.mark.parametrize("request_text", ["cuda", "cuda:0", "gpu"])
def test_an_explicit_request_does_not_fall_back(install_plugin, request_text: str) -> None:
    install_plugin("cuda", DOES_NOT_OPEN)
    with pytest.raises(Exception, match="context refused") as caught:
        open_device(request_text)
    assert not isinstance(caught.value, LaunchError)


@pytest.mark.parametrize(
    ("request_text", "message"),
    [
        ("cuda", "pip install ./plugins/bitnet-cuda"),
        ("l0", "'level-zero' is not installed. Install it: pip install ./plugins/bitnet-levelzero"),
        ("cpu:0", "pip install ./plugins/bitnet-cpu"),
        ("gpu", "no GPU found. Install a backend: pip install ./plugins/bitnet-"),
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
    with pytest.raises(BackendIncompatibleError, match="ZeroDivisionError") as caught:
        open_device("cuda")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_environment_chooses_where_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_DEVICE", "cuda")
    with pytest.raises(DeviceNotFoundError):
        open_device()
    assert selected("auto") == "numpy:0"
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
    first = BackendStartupSummary(AUTO, ("cuda",), devices(["cuda"])[0])
    lost, refused = DeviceLostError("gone"), KernelCompileError("no", kernel="embed", log="")
    assert [info.request for info in next_devices(first, lost)] == ["opencl:0", "opencl:1", "numpy:0"]
    # another backend may be able to use the card
    assert [info.request for info in next_devices(first, refused)] == ["opencl:0", "opencl:1", "vulkan:0", "numpy:0"]
    second = first.moved_to(devices(["opencl"])[0], "gone")
    assert [info.request for info in next_devices(second, lost)] == ["opencl:1", "vulkan:0", "numpy:0"]


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


BAD_VARIABLE = """
    from bitnet_hal.errors import UsageError
    def wrong(*_):
        raise UsageError("BITNET_VENDOR is 'x'. Use a number")
    Backend.{method} = wrong
"""


@pytest.mark.parametrize("method", ["devices", "open"])
@pytest.mark.parametrize("request_text", ["auto", "gpu", "vendor", "vendor:0"])
def test_a_wrong_variable_of_a_plugin_is_the_user_s_mistake(install_plugin, method: str, request_text: str) -> None:
    install_plugin("vendor", BAD_VARIABLE.format(method=method))
    with pytest.raises(UsageError, match=r"^BITNET_VENDOR is 'x'. Use a number$"):
        open_device(request_text)
    assert selected("numpy") == "numpy:0"


def test_a_wrong_variable_read_at_import_is_the_user_s_mistake(install_plugin) -> None:
    source = "from bitnet_hal.errors import UsageError\nraise UsageError('BITNET_VENDOR is wrong')"
    install_plugin("vendor", source=source)
    for request_text in ("auto", "vendor"):
        with pytest.raises(UsageError, match=r"^BITNET_VENDOR is wrong$"):
            open_device(request_text)


def test_a_listing_in_forks_keeps_the_mistake(install_plugin) -> None:
    install_plugin("vendor", BAD_VARIABLE.format(method="devices"))
    found = registry()
    answer = listing._probe(found, "vendor")
    entry = listing._quarantine(found, "vendor", *answer["left_out"][0])
    assert entry.stage is Stage.SETTING
    assert str(entry.as_error()) == "BITNET_VENDOR is 'x'. Use a number"
    assert "fault of" not in entry.fix


def test_a_failure_to_open_has_a_hint(install_plugin) -> None:
    install_plugin(
        "vendor",
        """
    def fail(self, index):
        raise BackendUnavailableError("open failed", backend=self.name, code="VK_ERROR_INITIALIZATION_FAILED (-3)")
    Backend.open = fail
""",
    )
    with pytest.raises(BackendUnavailableError) as caught:
        open_device("vendor")
    assert "bitnet doctor" in caught.value.hint


def test_a_device_that_is_open_and_a_description_travel() -> None:
    """To code that waits for an Opening, and to another process."""
    device, summary = open_device("numpy")
    with Opening.done(device, summary) as opening:
        assert opening.result() == (device, summary)
    info = replace(device.info, extra={"cores": 4}, batch_invariant_rows={"argmax": 8})
    assert pickle.loads(pickle.dumps(info)) == info  # noqa: S301 - our own
    device.close()
