"""Kernels in OpenCL C, how they are put together, and how devices want them. Nothing here needs an OpenCL binding."""
