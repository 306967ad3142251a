"""Runs the plugin's host code and kernels on the CPU: a HIP runtime of our own below unmodified hip-python.

It shows that the logic is right. It shows nothing about AMD's compiler, runtime or speed.
"""
