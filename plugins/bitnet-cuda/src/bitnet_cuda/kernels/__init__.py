"""The CUDA C++ sources of the kernels."""
