"""Import of wgpu on first use, and native calls that its Python layer lacks or makes too slow."""

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
    """Return PyPI `wgpu` with its native library. OpenGL is not queried, since that takes half of the start-up time."""
    try:
        import wgpu  # type: ignore[import-untyped]  # the package has no types
        import wgpu.backends.wgpu_native.extras  # type: ignore[import-untyped]
    except (ImportError, OSError, RuntimeError) as exc:
        said = f"wgpu cannot be used: {exc}".splitlines()[0]
        hint = f"Install it: {install_command('bitnet-webgpu')}"
        raise failure(BackendUnavailableError, "load", backend=BACKEND, said=said, hint=hint) from exc
    if sys.platform != "win32":  # where it would also choose Direct3D's shader model
        with suppress(RuntimeError):  # another user of wgpu in this process was first
            wgpu.backends.wgpu_native.extras.set_instance_extras(backends=["Primary"])
    return wgpu


def ffi() -> Any:
    """Return the FFI object of cffi."""
    return module().backends.wgpu_native.ffi


def lib() -> Any:
    """Return the native functions. Their errors are raised by the next call through `module()`."""
    return module().backends.wgpu_native.lib


def raw(made: Handle) -> Handle:
    """Return the native handle of an object of wgpu."""
    return made._internal


def trusted_module(device: Handle, code: str) -> Handle:
    """Create a shader module without bounds checks and loop counters: the kernels check their bounds themselves."""
    from wgpu.backends.wgpu_native import _api

    new = ffi().new
    encoded = code.encode()
    text = new("char[]", encoded)
    chain = {"sType": lib().WGPUSType_ShaderSourceWGSL}
    source = new("WGPUShaderSourceWGSL *", {"chain": chain, "code": {"data": text, "length": len(encoded)}})
    descriptor = new("WGPUShaderModuleDescriptor *", {"nextInChain": ffi().cast("WGPUChainedStruct *", source)})
    handle = _api.libf.wgpuDeviceCreateShaderModuleTrusted(raw(device), descriptor, 0)
    return _api.GPUShaderModule("", handle, device)


def mapping(on_status: Callable[[int], object]) -> tuple[Handle, Handle]:
    """Return the callback info for wgpuBufferMapAsync, and the callback, which must live as long.

    on_status: called with the WGPUMapAsyncStatus.
    """
    kind = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
    callback = ffi().callback(kind, lambda status, *_: on_status(status))
    info = {"mode": lib().WGPUCallbackMode_AllowProcessEvents, "callback": callback}
    return ffi().new("WGPUBufferMapCallbackInfo *", info), callback
