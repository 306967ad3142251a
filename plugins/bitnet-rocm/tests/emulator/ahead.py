"""Compile the programs of the conformance kit in advance, two at a time; the emulated runtime caches them."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.cases.tuned import products, tuned_cases
from bitnet_rocm import compile, tuning
from bitnet_rocm.describe import OPTIONAL

COMPUTE_UNITS = 8
"""Multiprocessors of the emulated GPU."""
ARCHITECTURES = ("gfx1100", "gfx90a", "gfx942", "gfx1201")
TUNED = ("gfx1100", "gfx90a")
"""Those of which the whole kit runs."""

Program = tuple[str, str, str]


def programs() -> Iterator[Program]:
    """(architecture, kernel, source) of every case, and of all tunings of those with which the kit tests them."""
    for architecture in ARCHITECTURES:
        for spec in CATALOGUE.values():
            for case in cases_of(spec.name) if spec.base or spec.name in OPTIONAL else ():
                launch = case.launch()
                try:
                    tuned = tuning.select_tuning(spec, launch.constants, launch.params, COMPUTE_UNITS, architecture)
                except UnsupportedError:
                    continue
                yield architecture, spec.name, compile.source(spec, launch.constants, tuned)
    offered = [name for name in products() if CATALOGUE[name].base or name in OPTIONAL]
    for architecture, case in itertools.product(TUNED, itertools.chain.from_iterable(map(tuned_cases, offered))):
        launch = case.launch()
        where = COMPUTE_UNITS, architecture
        with suppress(UnsupportedError):
            for tuned in tuning.candidate_tunings(case.spec, launch.constants, launch.params, *where):
                yield architecture, case.kernel, compile.source(case.spec, launch.constants, tuned)


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
