"""The contract between bitnet and its backends, and helpers for those who write one.

The contract, all that a plugin's author must read: `device` (Device, Backend and their types), `hooks`, `base`
(BaseDevice, which keeps the rules), `checks`, `launches`, `ownership`, `waiting`, `guard`, and the catalogue `kernels`.

Helpers, each for those who need it: `driver` (status codes, enumeration, program cache, staging), `tuning` (choice of
tiles), `families` (drivers alike CUDA's, Vulkan's, OpenCL C), `reference` (every kernel in numpy), `testing` (the
conformance kit). `discovery`, `launcher` and the rest serve core.

A plugin imports from `bitnet_hal.plugin` every name that it has, and any other from the module that defines it. Its
entry point imports `bitnet_hal.driver.lazy` at most. This package itself imports nothing.
"""
