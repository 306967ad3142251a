"""Runs the plugin's host code and kernels on a CPU: a Metal of our own, checked against pyobjc's tables of the real.

It shows that the logic is right. It shows nothing about Apple's compiler, driver or speed.
"""
