"""The parts of the plugin that need no device, and those that the conformance kit does not look at."""

from __future__ import annotations

import gc
import shutil
import subprocess
from pathlib import Path

import pytest
from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
    UsageError,
)
from bitnet_core.hal import DeviceType, MemoryKind, View, whole
from bitnet_vulkan.binding import ffi, make, module
from bitnet_vulkan.errors import Stage, VkResult, check
from bitnet_vulkan.instance import pci_address
from bitnet_vulkan.memory import _NEXT, BufferState, Memory, VulkanBuffer, _merged
from bitnet_vulkan.queue import wait_seconds
from bitnet_vulkan.shaders import KERNELS, build, variants


@pytest.fixture(scope="module")
def loader() -> None:
    try:
        module()
    except BackendUnavailableError as exc:
        pytest.skip(str(exc))


@pytest.mark.parametrize(
    ("status", "stage", "error"),
    [
        (VkResult.ERROR_OUT_OF_DEVICE_MEMORY, Stage.BUFFER_ALLOCATION, OutOfMemoryError),
        (VkResult.ERROR_OUT_OF_HOST_MEMORY, Stage.QUEUE, OutOfMemoryError),
        (VkResult.ERROR_TOO_MANY_OBJECTS, Stage.BUFFER_ALLOCATION, OutOfMemoryError),
        (VkResult.ERROR_DEVICE_LOST, Stage.WAIT, DeviceLostError),
        (VkResult.TIMEOUT, Stage.WAIT, GpuTimeoutError),
        (VkResult.ERROR_LAYER_NOT_PRESENT, Stage.INSTANCE_CREATION, BackendUnavailableError),
        (VkResult.ERROR_INCOMPATIBLE_DRIVER, Stage.INSTANCE_CREATION, BackendUnavailableError),
        (VkResult.ERROR_FEATURE_NOT_PRESENT, Stage.DEVICE_CREATION, UnsupportedError),
        (VkResult.ERROR_INVALID_SHADER_NV, Stage.SHADER_COMPILATION, KernelCompileError),
        (VkResult.ERROR_UNKNOWN, Stage.PIPELINE_CREATION, KernelCompileError),
        (VkResult.ERROR_UNKNOWN, Stage.QUEUE, LaunchError),
        (-12345, Stage.DEVICE_CREATION, BackendUnavailableError),
    ],
)
def test_every_status_has_its_class(status: int, stage: Stage, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        check(status, stage, device="d", kernel="k", requested=7)
    assert getattr(caught.value, "operation", None) == stage.value
    assert str(int(status)) in str(caught.value)


def test_source_and_binary_agree(tmp_path: Path) -> None:
    if not build(tmp_path):
        pytest.skip("glslangValidator is not installed")
    version = subprocess.run(["glslangValidator", "--version"], capture_output=True, text=True, check=True).stdout
    if "11:12.0.0" not in version:
        pytest.skip(f"the committed SPIR-V is glslang 12.0.0's, this is {version.splitlines()[0]}")
    for _, binary, _ in variants():
        assert (tmp_path / binary.name).read_bytes() == binary.read_bytes(), f"{binary.name} is stale"


def test_spirv_is_valid() -> None:
    if shutil.which("spirv-val") is None:
        pytest.skip("spirv-val is not installed")
    for _, binary, _ in variants():
        subprocess.run(["spirv-val", "--target-env", "vulkan1.1", str(binary)], check=True)


def test_no_stray_binaries() -> None:
    assert {path.name for path in KERNELS.glob("*.spv")} == {binary.name for _, binary, _ in variants()}


@pytest.mark.usefixtures("loader")
def test_nested_structs_keep_their_pointers() -> None:
    """A struct copied into another one, whose own pointers (pName) nobody else holds."""
    stage = make("VkPipelineShaderStageCreateInfo", stage=32, pName="m" * 200)
    create = make("VkComputePipelineCreateInfo", stage=stage)
    del stage
    gc.collect()
    trash = [make("VkApplicationInfo", pApplicationName="x" * 200) for _ in range(200)]
    assert ffi().string(create.stage.pName) == b"m" * 200
    assert len(trash) == 200


@pytest.mark.usefixtures("loader")
def test_structure_types_are_found() -> None:
    assert make("VkPhysicalDeviceIDProperties").sType == module().VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES
    assert make("VkPhysicalDeviceProperties2").sType == module().VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2
    expected = module().VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES
    assert make("VkPhysicalDeviceMaintenance3Properties").sType == expected


@pytest.mark.parametrize("first", list(BufferState))
@pytest.mark.parametrize("then", list(BufferState))
def test_the_life_of_a_buffer(first: BufferState, then: BufferState) -> None:
    buffer = VulkanBuffer(None, 4, MemoryKind.DEVICE, Memory(None, 4, 0, []), 0, 4, first)
    if then in _NEXT[first]:
        buffer.enter(then)
        assert buffer.state is then
    else:
        with pytest.raises(ValueError, match="cannot become"):
            buffer.enter(then)


def test_free_ranges_merge() -> None:
    assert _merged([(8, 4), (0, 4), (4, 4), (20, 1)]) == [(0, 12), (20, 1)]


def test_timeout_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BITNET_VULKAN_TIMEOUT", raising=False)
    assert wait_seconds(False) == 5
    monkeypatch.setenv("BITNET_VULKAN_TIMEOUT", "0.5")
    assert wait_seconds(True) == 0.5
    monkeypatch.setenv("BITNET_VULKAN_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="soon"):
        wait_seconds(False)


@pytest.mark.usefixtures("loader")
def test_sub_allocation_and_software_marking() -> None:
    from bitnet_vulkan.device import VulkanDevice

    try:
        device = VulkanDevice(0)
    except BackendUnavailableError as exc:
        pytest.skip(str(exc))
    try:
        assert ("llvmpipe" not in device.info.name) or device.info.type is DeviceType.SOFTWARE
        small = [device.alloc(1000) for _ in range(50)]
        assert len({id(buffer.memory) for buffer in small}) == 1
        for number, buffer in enumerate(small):
            device.upload(whole(buffer), memoryview(bytes([number]) * 1000))
        for buffer in small[::2]:
            device.free(buffer)
        again = [device.alloc(900) for _ in range(25)]
        assert {id(buffer.memory) for buffer in again} == {id(small[1].memory)}
        content = bytearray(1000)
        for number, buffer in list(enumerate(small))[1::2]:
            device.download(View(buffer, 0, 1000), memoryview(content))
            assert content == bytes([number]) * 1000
        device.download(View(again[0], 0, 900), memoryview(content)[:900])
        assert content[:900] == bytes(900)
    finally:
        device.close()


@pytest.mark.usefixtures("loader")
def test_a_card_is_known_by_its_pci_address() -> None:
    pci = make("VkPhysicalDevicePCIBusInfoPropertiesEXT", pciDomain=0, pciBus=0x3B, pciDevice=0, pciFunction=1)
    assert pci_address(pci) == "0000:3b:00.1"
