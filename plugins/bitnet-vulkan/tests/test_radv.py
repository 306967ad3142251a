"""Every shipped binary without matrices, compiled for AMD GPUs that are not present by RADV's own compiler.

Mesa's RADV has a device for any GPU family that compiles pipelines and runs nothing; it has no memory heaps. The driver
reads its choice once, so each family is a process. Cooperative matrices crash this compiler in Mesa 22.3.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path("/usr/share/vulkan/icd.d/radeon_icd.x86_64.json")
"""The driver of Debian's mesa-vulkan-drivers."""
FAMILIES = ("vega20", "navi21", "gfx1100")
"""GCN with dot products, RDNA2, RDNA3."""
MAY_SPILL = frozenset({"decoder_layer_resident.sub.spv", "decoder_layer_resident.sub.dot.spv"})
"""Not offered on AMD: it needs the number of multiprocessors, which this driver does not report."""

SCRIPT = """
import json
from bitnet_vulkan.compile import KERNELS
from bitnet_vulkan.driver import Logical, function, instance, vk

ffi, make = vk().ffi, vk().make
gpu = vk().listed("vkEnumeratePhysicalDevices", "test", instance())[0]
chain = make("VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR", pipelineExecutableInfo=1)
chain = make("VkPhysicalDeviceShaderIntegerDotProductFeatures", pNext=chain, shaderIntegerDotProduct=1)
chain = make("VkPhysicalDeviceSubgroupSizeControlFeatures", pNext=chain, subgroupSizeControl=1, computeFullSubgroups=1)
names = ["VK_KHR_pipeline_executable_properties"]
wanted = {"pNext": chain, "pQueueCreateInfos": [{}], "ppEnabledExtensionNames": names}
device = Logical(vk().given("vkCreateDevice", "open", gpu, wanted, vk().null))
sets = device.create("DescriptorSetLayout", {"flags": 0, "pBindings": [{"binding": i} for i in range(24)]})
layout = device.create("PipelineLayout", {"pSetLayouts": [sets], "pPushConstantRanges": [{"size": 128}]})
spills = {}
ask = function("vkGetPipelineExecutableStatisticsKHR")
for path in sorted(KERNELS.glob("*.spv")):
    if ".matrix" in path.name:
        continue
    code = path.read_bytes()
    module = device.create("ShaderModule", {"codeSize": len(code), "pCode": ffi.from_buffer("uint32_t[]", code)})
    lanes = 64 if path.name.startswith("matmul_dense_few") else 16  # as tuning.py has them
    given = {0: 256, 16: 64, 10: 2560, 11: lanes, 13: 128}  # GROUP, WAVE, WIDTH, LANES, DIM
    if path.name.startswith("gated_delta_rule_chunk"):
        given |= {1: 32, 27: 16}  # TILE_N, EACH, as gpu.toml has them
    entries = [{"constantID": c, "offset": 4 * i} for i, c in enumerate(given)]
    values = ffi.new("uint32_t[]", list(given.values()))
    special = make("VkSpecializationInfo", pMapEntries=entries, dataSize=4 * len(given), pData=values)
    sized = make("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=64)
    stage = {"pNext": sized, "flags": 2, "module": module, "pSpecializationInfo": special}
    create_info = make("VkComputePipelineCreateInfo", flags=0x40, stage=stage, layout=layout)  # capture statistics
    arguments = device.handle, ffi.NULL, 1, create_info, ffi.NULL
    pipeline = vk().given("vkCreateComputePipelines", "compile", *arguments, kernel=path.name)
    executable = make("VkPipelineExecutableInfoKHR", pipeline=pipeline)
    count = ffi.new("uint32_t *")
    ask(device.handle, executable, count, ffi.NULL)
    empty = make("VkPipelineExecutableStatisticKHR")
    found = ffi.new("VkPipelineExecutableStatisticKHR[]", [empty[0]] * count[0])
    ask(device.handle, executable, count, found)
    texts = {ffi.string(one.name).decode(): int(one.value.u64) for one in found}
    spills[path.name] = [texts["Spilled SGPRs"], texts["Spilled VGPRs"], texts["VGPRs"]]
print(json.dumps(spills))
"""


def run(code: str, family: str) -> subprocess.CompletedProcess[str]:
    """Run a Python process that sees one GPU of this family."""
    environment = {**os.environ, "RADV_FORCE_FAMILY": family, "VK_DRIVER_FILES": str(DRIVER)}
    environment["VK_ICD_FILENAMES"] = str(DRIVER)  # what older loaders call it
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(autouse=True)
def driver() -> None:
    """Skip if RADV is not installed."""
    if not DRIVER.exists():
        pytest.skip(f"no {DRIVER} (apt install mesa-vulkan-drivers)")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_binary_compiles_without_spilling(family: str) -> None:
    done = run(SCRIPT, family)
    assert done.returncode == 0, done.stderr[-3000:]
    spills = json.loads(done.stdout.splitlines()[-1])
    assert len(spills) > 30
    assert not {name: counts for name, counts in spills.items() if name not in MAY_SPILL and any(counts[:2])}


def test_a_device_without_memory_is_refused() -> None:
    done = run("from bitnet_vulkan.plugin import bitnet_backend; bitnet_backend().devices()", "navi21")
    assert "BackendUnavailableError" in done.stderr
    assert "has no device memory" in done.stderr
