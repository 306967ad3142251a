"""The contract between bitnet and its backends, and helpers for those who write one.

The contract, all that a plugin's author must read: `device` (Device, Backend and their types), `hooks`, `base`
(BaseDevice, which keeps the rules), `checks`, `launches`, `ownership`, `waiting`, `guard`, and the catalogue `kernels`.

Helpers: `driver` (status codes, enumeration, program cache, staging), `tuning` (choice of tiles), `families` (drivers
with streams like CUDA's, with command lists like Vulkan's, OpenCL C), `reference` (every kernel in numpy), `testing`
(the conformance kit). `discovery`, `launcher` and the other modules serve core.

A plugin imports the names that `bitnet_hal.plugin` exports from there, and all others from the module that defines
them. Its entry point imports nothing but `bitnet_hal.driver.lazy`. This package itself imports nothing.
"""
