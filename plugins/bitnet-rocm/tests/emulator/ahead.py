"""Compile the programs of the conformance kit in advance, two at a time; the emulated runtime caches them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_rocm import compile, tuning
from bitnet_rocm.describe import OPTIONAL

COMPUTE_UNITS = 8
"""Multiprocessors of the emulated GPU."""
ARCHITECTURES = ("gfx1100", "gfx90a", "gfx942", "gfx1201")

Program = tuple[str, str, str]


def programs() -> Iterator[Program]:
    """(architecture, kernel, source) of every case."""
    for architecture in ARCHITECTURES:
        for spec in CATALOGUE.values():
            for case in cases_of(spec.name) if spec.base or spec.name in OPTIONAL else ():
                launch = case.launch()
                try:
                    tuned = tuning.select_tuning(spec, launch.constants, launch.params, COMPUTE_UNITS, architecture)
                except UnsupportedError:
                    continue
                yield architecture, spec.name, compile.source(spec, launch.constants, tuned)


def make(program: Program) -> None:
    """Compile one program; the kit reports its errors."""
    architecture, name, source = program
    library, made = ctypes.CDLL(os.environ["ROCM_PATH"] + "/lib/libhiprtc.so"), ctypes.c_void_p()
    library.hiprtcCreateProgram(ctypes.byref(made), source.encode(), f"{name}.hip".encode(), 0, None, None)
    flags = (ctypes.c_char_p * 1)(f"--offload-arch={architecture}".encode())
    library.hiprtcCompileProgram(made, 1, flags)
    library.hiprtcDestroyProgram(ctypes.byref(made))


if __name__ == "__main__":
    once = {
        (name, source, architecture if "wmma" in source else ""): architecture
        for architecture, name, source in programs()
    }
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, [(architecture, name, source) for (name, source, _), architecture in once.items()]))
