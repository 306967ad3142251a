"""Every shipped binary without matrices compiled for AMD GPUs that are not there, by RADV's own compiler.

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
"""Of Debian's mesa-vulkan-drivers."""
FAMILIES = ("vega20", "navi21", "gfx1100")
"""GCN with dot products, RDNA2, RDNA3."""
MAY_SPILL = frozenset({"decoder_layer_resident.sub.spv", "decoder_layer_resident.sub.dot.spv"})
"""Not offered on AMD: it needs the number of multiprocessors, which this driver does not tell."""

SCRIPT = """
import json
from bitnet_vulkan.compile import COMPUTE_STAGE, KERNELS, STORAGE_BUFFER
from bitnet_vulkan.driver import Instance, create, ffi, function, lib, make
from bitnet_vulkan.errors import Stage, check

instance = Instance()
count, gpus = ffi().new("uint32_t *", 1), ffi().new("VkPhysicalDevice[1]")
lib().vkEnumeratePhysicalDevices(instance.handle, count, gpus)
chain = make("VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR", pipelineExecutableInfo=1)
chain = make("VkPhysicalDeviceShaderIntegerDotProductFeatures", pNext=chain, shaderIntegerDotProduct=1)
chain = make("VkPhysicalDeviceSubgroupSizeControlFeatures", pNext=chain, subgroupSizeControl=1, computeFullSubgroups=1)
queue = make("VkDeviceQueueCreateInfo", queueCount=1, pQueuePriorities=ffi().new("float[]", [1.0]))
names = ["VK_KHR_pipeline_executable_properties"]
info = make("VkDeviceCreateInfo", pNext=chain, queueCreateInfoCount=1, pQueueCreateInfos=[queue[0]],
            enabledExtensionCount=1, ppEnabledExtensionNames=names)
device = ffi().new("VkDevice *")
check(lib().vkCreateDevice(gpus[0], info, ffi().NULL, device), Stage.DEVICE)
slots = [make("VkDescriptorSetLayoutBinding", binding=i, descriptorType=STORAGE_BUFFER, descriptorCount=1,
              stageFlags=COMPUTE_STAGE)[0] for i in range(24)]
sets = create("DescriptorSetLayout", device[0], Stage.PIPELINE, bindingCount=24, pBindings=slots)
push = make("VkPushConstantRange", stageFlags=COMPUTE_STAGE, size=128)[0]
layout = create("PipelineLayout", device[0], Stage.PIPELINE, setLayoutCount=1, pSetLayouts=[sets],
                pushConstantRangeCount=1, pPushConstantRanges=[push])
spills = {}
ask = function("vkGetPipelineExecutableStatisticsKHR", device=device[0])
for path in sorted(KERNELS.glob("*.spv")):
    if ".matrix" in path.name:
        continue
    code = path.read_bytes()
    words = ffi().cast("uint32_t *", ffi().from_buffer(code))
    module = create("ShaderModule", device[0], Stage.PIPELINE, codeSize=len(code), pCode=words)
    lanes = 64 if path.name.startswith("matmul_dense_few") else 16  # as tuning.py has them
    given = {0: 256, 16: 64, 10: 2560, 11: lanes, 13: 128}  # GROUP, WAVE, WIDTH, LANES, DIM
    values = ffi().new("uint32_t[]", list(given.values()))
    entries = [make("VkSpecializationMapEntry", constantID=c, offset=4 * i, size=4)[0] for i, c in enumerate(given)]
    special = make("VkSpecializationInfo", mapEntryCount=len(given), pMapEntries=entries, dataSize=4 * len(given),
                   pData=ffi().cast("void *", values))
    sized = make("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=64)
    stage = make("VkPipelineShaderStageCreateInfo", pNext=sized, flags=2, stage=COMPUTE_STAGE, module=module,
                 pName="main", pSpecializationInfo=special)
    create_info = make("VkComputePipelineCreateInfo", flags=0x40, stage=stage, layout=layout)  # capture statistics
    pipeline = ffi().new("VkPipeline *")
    check(lib().vkCreateComputePipelines(device[0], ffi().NULL, 1, create_info, ffi().NULL, pipeline), Stage.PIPELINE,
          kernel=path.name)
    executable = make("VkPipelineExecutableInfoKHR", pipeline=pipeline[0])
    count = ffi().new("uint32_t *")
    ask(device[0], executable, count, ffi().NULL)
    empty = make("VkPipelineExecutableStatisticKHR")
    found = ffi().new("VkPipelineExecutableStatisticKHR[]", [empty[0]] * count[0])
    ask(device[0], executable, count, found)
    texts = {ffi().string(one.name).decode(): int(one.value.u64) for one in found}
    spills[path.name] = [texts["Spilled SGPRs"], texts["Spilled VGPRs"], texts["VGPRs"]]
print(json.dumps(spills))
"""


def run(code: str, family: str) -> subprocess.CompletedProcess[str]:
    """A Python process that sees one GPU of this family."""
    environment = {**os.environ, "RADV_FORCE_FAMILY": family, "VK_DRIVER_FILES": str(DRIVER)}
    environment["VK_ICD_FILENAMES"] = str(DRIVER)  # what older loaders call it
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(autouse=True)
def driver() -> None:
    """Skip where RADV is not installed."""
    if not DRIVER.exists():
        pytest.skip(f"RADV is not installed: no {DRIVER}")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_binary_compiles_without_spilling(family: str) -> None:
    done = run(SCRIPT, family)
    assert done.returncode == 0, done.stderr[-3000:]
    spills = json.loads(done.stdout.splitlines()[-1])
    assert len(spills) > 30
    assert not {name: counts for name, counts in spills.items() if name not in MAY_SPILL and any(counts[:2])}


def test_a_device_without_memory_is_refused() -> None:
    done = run("from bitnet_vulkan.plugin import VulkanBackend; VulkanBackend().devices()", "navi21")
    assert "BackendUnavailableError" in done.stderr
    assert "has not memory" in done.stderr
