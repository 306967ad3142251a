"""The table of known backends: everything that core knows about vendors. Other backends work too (`Backend.rank`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import importlib_metadata

AMD = "0x1002"
INTEL = "0x8086"
NVIDIA = "0x10de"
PCI_VENDORS = {AMD: "AMD", INTEL: "Intel", NVIDIA: "NVIDIA"}
_PC = ("linux", "win32")


@dataclass(frozen=True, slots=True)
class KnownBackend:
    """A backend that core knows by name, installed or not."""

    name: str
    package: str  # the distribution to install
    rank: int  # preference of its hardware under `auto`; higher is better
    aliases: tuple[str, ...] = ()  # other names in a device request
    cards: tuple[str, ...] = ()  # PCI vendors for whose cards it is recommended
    systems: tuple[str, ...] = ("linux", "win32", "darwin")  # values of sys.platform that it supports
    variables: tuple[str, ...] = ()  # environment variables that change which devices its driver lists
    defaults: tuple[tuple[str, str], ...] = ()  # variables that `bitnet` sets unless the user did, with values
    libraries: tuple[str, ...] = ()  # parts of the file names of its driver's libraries
    modules: tuple[str, ...] = ()  # Python modules that are slow to import or load the driver
    own_driver: bool = True  # False: backends share it. Some crash if threads create Vulkan instances at once


_TABLE = (
    KnownBackend(
        "cuda",
        "bitnet-cuda",
        100,
        cards=(NVIDIA,),
        systems=_PC,
        variables=("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
        libraries=("libcuda.", "libnvrtc"),
        modules=("cuda",),
    ),
    KnownBackend(
        "rocm",
        "bitnet-rocm",
        90,
        aliases=("hip",),
        cards=(AMD,),
        systems=_PC,
        variables=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        libraries=("libamdhip64", "libhiprtc"),
        modules=("hip",),
    ),
    KnownBackend(
        "level-zero",
        "bitnet-levelzero",
        80,
        aliases=("oneapi", "ze", "l0"),
        cards=(INTEL,),
        systems=_PC,
        variables=("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
        defaults=(("ZES_ENABLE_SYSMAN", "1"),),  # makes drivers report free memory
        libraries=("libze_loader",),
    ),
    KnownBackend(
        "opencl",
        "bitnet-opencl",
        70,
        aliases=("ocl",),
        cards=(AMD, INTEL),
        systems=_PC,
        variables=("OCL_ICD_VENDORS", "POCL_DEVICES"),
        libraries=("libOpenCL",),
        modules=("pyopencl",),
    ),
    KnownBackend(
        "vulkan",
        "bitnet-vulkan",
        60,
        cards=(AMD, INTEL),
        systems=_PC,
        variables=("VK_ICD_FILENAMES", "VK_DRIVER_FILES", "VK_INSTANCE_LAYERS"),
        libraries=("libvulkan",),
        modules=("vulkan",),
        own_driver=False,
    ),
    KnownBackend("metal", "bitnet-metal", 50, systems=("darwin",), modules=("Metal",)),
    KnownBackend(
        "webgpu",
        "bitnet-webgpu",
        40,
        variables=("WGPU_BACKEND", "WGPU_BACKEND_TYPE", "WGPU_ADAPTER_NAME"),
        libraries=("libwgpu",),
        modules=("wgpu", "wgpu.backends.wgpu_native"),
        own_driver=False,
    ),
    KnownBackend("cpu", "bitnet-cpu", 20),
    KnownBackend("numpy", "bitnet-hal", 0, modules=("numpy",)),
)
KNOWN = {backend.name: backend for backend in _TABLE}
"""The table by name, best first."""
ALIASES = {alias: backend.name for backend in _TABLE for alias in backend.aliases}
GPU_BACKENDS = tuple(backend.name for backend in _TABLE if backend.name not in ("cpu", "numpy"))
RESERVED = ("all", "auto", "gpu", "npu")
"""Names of the request grammar, forbidden for plugins."""
NO_BACKEND = {
    "npu": "'npu' is reserved: there is no backend for neural processors yet",
    "opengl": "OpenGL has no backend here: its drivers promise too little for compute; use the card's Vulkan driver",
    "opengles": "OpenGL ES has no backend here: its drivers promise too little for compute; use Vulkan",
    "webgl2": "WebGL 2 has no compute shaders; in a browser only WebGPU computes",
}
"""Names that users try, and why there is no such backend; a plugin may still provide one of the last three."""
OTHER_GPU = 30
"""Rank of hardware of an unknown backend without a rank of its own."""
INTEGRATED = 15
"""Rank of a GPU that shares the CPU's memory: below the native CPU until `bitnet tune` finds it faster."""
SOFTWARE = 10
"""Rank of a CPU behind a GPU API and of an unknown CPU backend: below the native CPU."""


def by_driver(names: Sequence[str]) -> list[list[str]]:
    """Group backends: those that may share a driver form one group, each other backend its own."""
    shared = [name for name in names if name not in KNOWN or not KNOWN[name].own_driver]
    return [[name] for name in names if name not in shared] + ([shared] if shared else [])


PACKAGES = (*(backend.package for backend in _TABLE), "bitnet-core", "bitnet-server")
"""Names of the project's packages on an index; in a checkout each is a folder."""
PACKAGE_COMMANDS = {"serve": "bitnet-server"}
"""Commands and the package that adds them."""
REPORT = "with the output of `bitnet doctor --json`"
"""End of every "report it" hint: authors need this output."""


@cache
def from_index() -> bool:
    """Return whether bitnet-hal was installed from an index (PEP 610: no direct_url.json).

    If not, the names may belong to somebody else on the index, so hints refer to folders of the checkout.
    """
    try:
        return importlib_metadata.distribution("bitnet-hal").read_text("direct_url.json") is None
    except importlib_metadata.PackageNotFoundError:
        return False


def install_command(*packages: str) -> str:
    """Return the pip command for packages of the project, such as "bitnet-opencl[pocl]".

    It uses names if bitnet-hal came from an index, else the folders of the checkout.
    """
    return "pip install " + " ".join(map(_source, packages))


def install_hint(*names: str) -> str:
    """Return the pip command that installs one of these known backends."""
    return "pip install " + " or ".join(_source(KNOWN[name].package) for name in names)


def upgrade_hint(*packages: str) -> str:
    """Return the advice to upgrade packages, with a command if these names surely mean our packages."""
    text = f"Upgrade {' and '.join(packages)}"
    if from_index():
        return f"{text}: pip install -U {' '.join(packages)}"
    ours = [package for package in packages if package in PACKAGES]
    return f"{text}; in a current checkout: {install_command(*ours)}" if ours else text


def _source(package: str) -> str:
    """Return the argument of `pip install` for a package: its name, or its folder in a checkout."""
    name, bracket, extras = package.partition("[")
    needed = ""
    if not from_index():
        needed = "./hal " if name == "bitnet-core" else ""  # core depends on it, and no index has it
        name = {"bitnet-core": "./core", "bitnet-hal": "./hal"}.get(name, f"./plugins/{name}")
    return needed + (f'"{name}[{extras}"' if bracket else name)


def backends_here(card: str | None = None) -> list[str]:
    """Return the GPU backends for this system, best first. card: only those recommended for this PCI vendor."""
    return [
        name
        for name in GPU_BACKENDS
        if sys.platform in KNOWN[name].systems and (card is None or card in KNOWN[name].cards)
    ]
