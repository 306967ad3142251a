"""Every shader of bitnet-vulkan through AMD's compiler of Mesa (RADV, ACO), without an AMD GPU. Nothing is run.

    for family in navi21 gfx1100 vega20; do
        RADV_FORCE_FAMILY=$family VK_DRIVER_FILES=/usr/share/vulkan/icd.d/radeon_icd.x86_64.json \\
            python benchmarks/reliability/radv.py
    done

RADV_FORCE_FAMILY makes a device that compiles pipelines and has no memory. Needs Debian's mesa-vulkan-drivers and the
packages vulkan and bitnet-vulkan. Shaders with cooperative matrices are left out: they crash Mesa 22.3. Exits with 1 if
a shader does not compile.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Any

import vulkan as vk

BINDINGS = 24


def null_device() -> tuple[str, Any]:
    """Name and device, with what the shaders may use."""
    application = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 3, 0))
    instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=application), None)
    gpu = vk.vkEnumeratePhysicalDevices(instance)[0]
    v13 = vk.VkPhysicalDeviceVulkan13Features(subgroupSizeControl=1, computeFullSubgroups=1, shaderIntegerDotProduct=1)
    v12 = vk.VkPhysicalDeviceVulkan12Features(
        pNext=v13,
        storageBuffer8BitAccess=1,
        uniformAndStorageBuffer8BitAccess=1,
        shaderInt8=1,
        shaderFloat16=1,
        bufferDeviceAddress=1,
        vulkanMemoryModel=1,
        vulkanMemoryModelDeviceScope=1,
        shaderSubgroupExtendedTypes=1,
    )
    v11 = vk.VkPhysicalDeviceVulkan11Features(
        pNext=v12, storageBuffer16BitAccess=1, uniformAndStorageBuffer16BitAccess=1
    )
    create = vk.VkDeviceCreateInfo(
        pNext=v11,
        pQueueCreateInfos=[vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, queueCount=1, pQueuePriorities=[1.0])],
        queueCreateInfoCount=1,
        pEnabledFeatures=[vk.VkPhysicalDeviceFeatures(shaderInt16=1, shaderInt64=1)],
    )
    return vk.vkGetPhysicalDeviceProperties(gpu).deviceName, vk.vkCreateDevice(gpu, create, None)


def pipeline_layout(device: Any) -> Any:
    bindings = [
        vk.VkDescriptorSetLayoutBinding(
            binding=number,
            descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            descriptorCount=1,
            stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
        )
        for number in range(BINDINGS)
    ]
    sets = vk.vkCreateDescriptorSetLayout(device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings), None)
    push = vk.VkPushConstantRange(stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=128)
    create = vk.VkPipelineLayoutCreateInfo(pSetLayouts=[sets], pPushConstantRanges=[push])
    return vk.vkCreatePipelineLayout(device, create, None)


def main() -> None:
    name, device = null_device()
    layout = pipeline_layout(device)
    shaders = sorted(
        (path for path in files("bitnet_vulkan.kernels").iterdir() if path.name.endswith(".spv")), key=lambda p: p.name
    )
    refused = 0
    chosen = [path for path in shaders if "matrix" not in path.name and "coop" not in path.name]
    for path in chosen:
        code = path.read_bytes()
        try:
            module = vk.vkCreateShaderModule(device, vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code), None)
            stage = vk.VkPipelineShaderStageCreateInfo(
                stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=module, pName="main"
            )
            vk.vkCreateComputePipelines(
                device, None, 1, [vk.VkComputePipelineCreateInfo(stage=stage, layout=layout)], None
            )
        except vk.VkError as error:
            refused += 1
            print(f"{path.name}: {type(error).__name__}")
    print(f"{name}: {len(chosen) - refused} of {len(chosen)} shaders compile, {len(shaders) - len(chosen)} left out")
    sys.exit(refused > 0 or not chosen)


if __name__ == "__main__":
    main()
