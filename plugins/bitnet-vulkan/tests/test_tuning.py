"""Every variant that tuning chooses has a SPIR-V file, for all kinds of devices with and without their abilities.

A kernel or variant that only some GPUs use would otherwise fail on their owners' machines alone.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.testing.cases.registry import all_cases
from bitnet_hal.tuning.query import TuningQuery
from bitnet_vulkan.compile import KERNELS, source_of
from bitnet_vulkan.describe import offered
from bitnet_vulkan.tuning import candidate_tunings

ROWS = (1, 9, 1024)
"""A decode step, a short prompt and a long one, beside the rows of the kit's cases."""
Launch = tuple[KernelSpec, dict[str, int], dict[str, int | float]]


@cache
def launches() -> list[Launch]:
    """Return (kernel, constants, parameters) of the kit's cases, each with several numbers of rows."""
    found: list[Launch] = []
    seen = set()
    for case in all_cases():
        launch = case.launch()
        params = dict(launch.params)
        for rows in (params.get("rows", 0), *ROWS):
            if "rows" in params:
                params["rows"] = rows
            key = (case.kernel, *launch.constants.items(), *params.items())
            if key not in seen:
                seen.add(key)
                found.append((case.spec, launch.constants, dict(params)))
    return found


def devices() -> list[DeviceInfo]:
    """Return a device for each combination of kind and abilities."""
    found = []
    for kind, subgroups, dot, matrix in product(
        (DeviceType.SOFTWARE, DeviceType.INTEGRATED, DeviceType.GPU), (0, 8, 32, 64), (0, 1), (0, 1)
    ):
        if matrix and subgroups != 32:
            continue
        able = {
            "dot": dot,
            "subgroups": subgroups,
            "matrix": matrix,
            "half-matrix": matrix,
            "import": 0,
            "resident": 132 if subgroups else 0,
        }
        extra = {**able, "shared_memory": 49152}
        found.append(DeviceInfo("vulkan", 0, "x", kind, kernels=offered("kernels", able), extra=extra))
    return found


def chosen_files(info: DeviceInfo) -> set[Path]:
    """Return the SPIR-V files of all tunings of the launches that the device runs."""
    found = set()
    for spec, constants, params in launches():
        try:
            tunings = candidate_tunings(TuningQuery(spec, constants, params, info))
        except UnsupportedError:
            continue
        found |= {source_of(tuning.source(spec.name), info) for tuning in tunings}
    return found


@pytest.mark.parametrize("info", devices(), ids=lambda info: f"{info.type.value}-{info.extra['subgroups']}")
def test_every_variant_has_its_spirv_file(info: DeviceInfo) -> None:
    assert chosen_files(info)


def test_every_spirv_file_is_chosen_by_some_device() -> None:
    """So that the launches above reach all variants, and no file is left behind."""
    chosen = set().union(*(chosen_files(info) for info in devices()))
    assert chosen == set(KERNELS.glob("*.spv"))
