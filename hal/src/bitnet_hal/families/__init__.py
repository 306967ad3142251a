"""Device classes for families of drivers: streams (CUDA, HIP), command lists (Level Zero, Vulkan), OpenCL C."""
