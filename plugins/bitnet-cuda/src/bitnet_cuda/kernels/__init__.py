"""CUDA C++ sources."""
