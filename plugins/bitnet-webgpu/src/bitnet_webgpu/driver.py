"""wgpu, imported on first use, and the few calls for which its Python layer is too slow or has no name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from bitnet_hal.discovery.known import install_command
from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.plugin import failure

Handle = Any
"""An object of wgpu, or a cffi pointer: neither has static types."""
BACKEND = "webgpu"


@cache
def module() -> Any:
    """PyPI `wgpu` with its native library, which does not ask OpenGL: that takes half the time for nothing."""
    try:
        import wgpu  # type: ignore[import-untyped]  # the package has no types
        import wgpu.backends.wgpu_native.extras  # type: ignore[import-untyped]
    except (ImportError, OSError, RuntimeError) as exc:
        said, hint = f"wgpu cannot be used: {exc}".splitlines()[0], f"Install it: {install_command('bitnet-webgpu')}"
        raise failure(BackendUnavailableError, "load", backend=BACKEND, said=said, hint=hint) from exc
    if sys.platform != "win32":  # where it would also choose Direct3D's shader model
        with suppress(RuntimeError):  # another user of wgpu in this process was first
            wgpu.backends.wgpu_native.extras.set_instance_extras(backends=["Primary"])
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

    new, text = ffi().new, ffi().new("char[]", code.encode())
    kind, size = lib().WGPUSType_ShaderSourceWGSL, len(code.encode())
    source = new("WGPUShaderSourceWGSL *", {"chain": {"sType": kind}, "code": {"data": text, "length": size}})
    about = new("WGPUShaderModuleDescriptor *", {"nextInChain": ffi().cast("WGPUChainedStruct *", source)})
    made = _api.libf.wgpuDeviceCreateShaderModuleTrusted(raw(device), about, 0)
    return _api.GPUShaderModule("", made, device)


def mapping(told: Callable[[int], object]) -> tuple[Handle, Handle]:
    """What wgpuBufferMapAsync wants, which tells its status, and what must live as long."""
    kind = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
    callback = ffi().callback(kind, lambda status, *_: told(status))
    about = {"mode": lib().WGPUCallbackMode_AllowProcessEvents, "callback": callback}
    return ffi().new("WGPUBufferMapCallbackInfo *", about), callback
