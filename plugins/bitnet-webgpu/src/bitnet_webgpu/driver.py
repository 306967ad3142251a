"""wgpu, imported on first use, and the few calls for which its Python layer is too slow or has no name."""

from __future__ import annotations

from functools import cache
from typing import Any

from bitnet_core.errors import BackendUnavailableError

Handle = Any
"""An object of wgpu, or a cffi pointer: neither has static types."""


@cache
def module() -> Any:
    """PyPI `wgpu` with its native library."""
    try:
        import wgpu  # type: ignore[import-untyped]  # the package has no types
        import wgpu.backends.wgpu_native  # type: ignore[import-untyped]
    except (ImportError, OSError, RuntimeError) as exc:
        raise BackendUnavailableError(
            f"wgpu cannot be used: {exc}".splitlines()[0],
            backend="webgpu",
            operation="load",
            hint="Install it: pip install bitnet-webgpu",
        ) from exc
    return wgpu


def ffi() -> Any:
    """cffi's interface object."""
    return module().backends.wgpu_native.ffi


def lib() -> Any:
    """The native functions themselves: errors show at the next call through `module()`."""
    return module().backends.wgpu_native.lib


def raw(made: Handle) -> Handle:
    """The native handle of an object of wgpu."""
    return made._internal


def trusted_module(device: Handle, code: str) -> Handle:
    """A shader module without bounds checks and loop counters: the kernels check their own bounds."""
    from wgpu.backends.wgpu_native import _api

    cffi = ffi()
    text = cffi.new("char[]", code.encode())
    source = cffi.new("WGPUShaderSourceWGSL *")
    source.chain.sType = lib().WGPUSType_ShaderSourceWGSL
    source.code.data, source.code.length = text, len(code.encode())
    about = cffi.new("WGPUShaderModuleDescriptor *")
    about.nextInChain = cffi.cast("WGPUChainedStruct *", source)
    about.label.length = 0
    made = _api.libf.wgpuDeviceCreateShaderModuleTrusted(raw(device), about, 0)
    return _api.GPUShaderModule("", made, device)
