"""DeviceInfo of adapters as wgpu describes them: names, offered kernels, requested limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from bitnet_core.plan.kernels import LM_HEAD_INT8
from bitnet_hal.checks import writes
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.driver.enumerate import EnumeratedDevice
from bitnet_hal.errors import BackendUnavailableError, DeviceNotFoundError, UnsupportedError, UsageError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.tuning.query import TuningQuery
from bitnet_webgpu import describe, filters
from bitnet_webgpu.describe import KNOWN
from bitnet_webgpu.plugin import bitnet_backend
from bitnet_webgpu.tuning import select_tuning

DEFAULTS = {
    "max-buffer-size": 256 << 20,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroup-storage-size": 16384,
    "min-storage-buffer-offset-alignment": 256,
}
"""WebGPU's default limits."""


def adapter(
    kind: str = "DiscreteGPU", api: str = "Vulkan", vendor: int = 0x10DE, features: tuple[str, ...] = (), **limits: int
) -> Any:
    """An adapter with WebGPU's default limits, but for `limits` (with _ for -)."""
    info = {"adapter_type": kind, "backend_type": api, "vendor_id": vendor, "vendor": "?", "device": "One"}
    named = {name.replace("_", "-"): value for name, value in limits.items()}
    asked: list[dict[str, Any]] = []
    return SimpleNamespace(
        info={**info, "description": "driver 1"},
        limits={**DEFAULTS, **named},
        features=set(features),
        asked=asked,
        request_device_sync=lambda **query: asked.append(query),
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("DiscreteGPU", DeviceType.GPU),
        ("IntegratedGPU", DeviceType.INTEGRATED),
        ("CPU", DeviceType.SOFTWARE),
        ("Unknown", DeviceType.GPU),
    ],
)
def test_kinds(kind: str, expected: DeviceType) -> None:
    assert describe.describe(adapter(kind), 0).type is expected


def test_what_an_adapter_is() -> None:
    info = describe.describe(adapter(api="Metal", vendor=0x106B, max_buffer_size=1 << 30), 3)
    assert (info.index, info.name, info.vendor, info.driver) == (3, "One", "Apple", "Metal, driver 1")
    assert (info.max_allocation, info.max_binding, info.alignment) == (1 << 30, 128 << 20, 256)
    assert describe.describe(adapter(vendor=1), 0).vendor == "?"


def test_each_absence_is_served() -> None:
    poor = describe.describe(adapter(), 0)
    assert poor.features == {"tunings", "replay-many", "async-readback", "lm-head-int8"}
    assert poor.extra["subgroups"] == 1
    assert poor.kernels == {*KNOWN["everywhere"], "norm_matmul", "norm_matmul_glu"}, "rope_attention binds ten buffers"
    found = adapter(features=tuple(KNOWN["features"]), max_storage_buffers_per_shader_stage=10)
    rich = describe.describe(found, 0)
    assert rich.features == {"tunings", "replay-many", "async-readback", "lm-head-int8", "timings"}
    assert rich.extra["subgroups"] == 32
    assert rich.kernels == {*KNOWN["everywhere"], *KNOWN["fused"]}
    assert describe.describe(adapter(vendor=1, features=("subgroup",)), 0).extra["subgroups"] == 1


def test_the_int8_head_is_the_default_where_it_was_measured() -> None:
    assert "lm-head-int8" not in describe.describe(adapter(vendor=0x1002), 0).features
    software = describe.describe(adapter(kind="CPU", vendor=0x10005), 0)
    assert "lm-head-int8" not in software.features
    assert software.kernels >= LM_HEAD_INT8, "the option turns it on"


def test_a_device_is_asked_for_with_the_adapters_own_limits() -> None:
    found = adapter(features=("subgroup", "shader-f16"), max_storage_buffer_binding_size=1 << 30)
    describe.request(EnumeratedDevice(found, describe.describe(found, 0)))
    (asked,) = found.asked
    assert asked["required_features"] == ["subgroup"]
    assert asked["required_limits"] == {**DEFAULTS, "max-storage-buffer-binding-size": 1 << 30}


def test_adapters_of_opengl_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [adapter(api="OpenGL"), adapter()]
    gpu = SimpleNamespace(enumerate_adapters_sync=lambda: found)
    monkeypatch.setattr(describe, "module", lambda: SimpleNamespace(gpu=gpu))
    assert [info.index for _, info in describe.usable()] == [1]
    with pytest.raises(DeviceNotFoundError, match="no device webgpu:0") as caught:
        bitnet_backend().open(0)
    assert caught.value.hint == "Present: webgpu:1 One"
    del found[1]
    with pytest.raises(BackendUnavailableError, match="no WebGPU adapter"):
        describe.usable()


def test_an_adapter_that_gives_no_device_is_unavailable() -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("Request device failed (2): the driver has gone")

    found = adapter()
    found.request_device_sync = refuse
    with pytest.raises(BackendUnavailableError, match=r"webgpu One: .*the driver has gone") as caught:
        describe.request(EnumeratedDevice(found, describe.describe(found, 0)))
    assert (caught.value.operation, caught.value.hint) == ("open", "Update the driver of the GPU")


@pytest.mark.parametrize("buffers", [8, 10])
def test_no_launch_binds_more_than_the_adapter_allows(buffers: int) -> None:
    info = describe.describe(adapter(max_storage_buffers_per_shader_stage=buffers), 0)
    most = max(bound(info, name) for name, spec in CATALOGUE.items() if spec.base or name in info.kernels)
    assert most <= buffers
    assert buffers == 8 or most == 10


def bound(info: DeviceInfo, kernel: str) -> int:
    """Storage buffers of the launch of a kernel's cases that binds the most."""
    counts = []
    for case in cases_of(kernel):
        launch = case.launch()
        try:
            tuning = select_tuning(TuningQuery(case.spec, launch.constants, launch.params, info))
        except UnsupportedError:
            continue
        counts.append(len(writes(case.spec, tuning)))
    return max(counts)


ADAPTERS = [adapter(api="Vulkan", vendor=1), adapter(api="D3D12"), adapter(api="OpenGLES"), adapter(api="Metal")]


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({}, [0, 1, 2, 3]),
        ({"WGPU_BACKEND": "vulkan"}, [0]),
        ({"WGPU_BACKEND": "VK, dx12"}, [0, 1]),
        ({"WGPU_BACKEND": "gl"}, [2]),
        ({"WGPU_BACKEND_TYPE": "D3D12"}, [1]),
        ({"WGPU_BACKEND_TYPE": "Metal", "WGPU_BACKEND": "metal,vulkan"}, [3]),
        ({"WGPU_BACKEND_TYPE": "Metal", "WGPU_BACKEND": "vulkan"}, []),
        ({"WGPU_ADAPTER_NAME": "oN"}, [0, 1, 2, 3]),
    ],
)
def test_variables_choose_adapters(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], shown: list[int]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [index for index, _ in filters.chosen(enumerate(ADAPTERS))] == shown


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("WGPU_BACKEND", "vulkan,warp", "'warp' is not one of vulkan, vk, metal"),
        ("WGPU_BACKEND_TYPE", "7", "'7' is not one of"),
        ("WGPU_ADAPTER_NAME", "nosuchcard", "'nosuchcard' is a part of no adapter's name; there are One"),
    ],
)
def test_a_wrong_name_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=f"^{variable}=.*{message}"):
        filters.chosen(enumerate(ADAPTERS))
