"""Selection of adapters by WGPU_BACKEND, WGPU_BACKEND_TYPE and WGPU_ADAPTER_NAME, which wgpu's enumeration ignores."""

from __future__ import annotations

import os
from collections.abc import Iterable

from bitnet_hal.errors import UsageError, short
from bitnet_hal.plugin import Handle

APIS = {
    **dict.fromkeys(("vulkan", "vk"), "Vulkan"),
    **dict.fromkeys(("metal", "mtl"), "Metal"),
    **dict.fromkeys(("dx12", "d3d12"), "D3D12"),
    **dict.fromkeys(("gl", "gles", "opengl", "opengles"), "OpenGL"),
}
"""The adapter's backend_type by the lower-case name of an API in the variables. OpenGL ES counts as OpenGL."""


def chosen_apis() -> set[str] | None:
    """Return the APIs that WGPU_BACKEND (several, with commas) and WGPU_BACKEND_TYPE permit, None for all.

    Raises UsageError for an unknown name.
    """
    allowed: set[str] | None = None
    for variable in ("WGPU_BACKEND", "WGPU_BACKEND_TYPE"):
        names = [name.strip().lower() for name in os.environ.get(variable, "").split(",") if name.strip()]
        for name in names:
            if name not in APIS:
                known = ", ".join(APIS)
                raise UsageError(f"{variable}={short(os.environ[variable])}: {short(name)} is not one of {known}")
        if names:
            apis = {APIS[name] for name in names}
            allowed = apis if allowed is None else allowed & apis
    return allowed


def chosen(adapters: Iterable[tuple[int, Handle]]) -> list[tuple[int, Handle]]:
    """Return the (index, adapter) pairs that the variables permit.

    Raises UsageError if no adapter's name contains WGPU_ADAPTER_NAME.
    """
    apis = chosen_apis()
    wanted = os.environ.get("WGPU_ADAPTER_NAME", "").strip().lower()
    every = list(adapters)
    named = [(index, one) for index, one in every if wanted in one.info["device"].lower()]
    if every and not named:
        names = ", ".join(sorted({one.info["device"] for _, one in every}))
        raise UsageError(f"WGPU_ADAPTER_NAME={short(wanted)} is a part of no adapter's name; there are {names}")
    return [(index, one) for index, one in named if apis is None or one.info["backend_type"].removesuffix("ES") in apis]
