"""Runs the plugin's host code and kernels on the CPU: a libcuda of our own, and Clang in NVRTC's place.

It shows that the logic is right. It shows nothing about NVIDIA's compiler, driver or speed.
"""
