"""Every variant that tuning chooses has its source, for all classes of devices.

A kernel or variant that only some GPUs use would otherwise fail on their owners' machines alone.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import ROTATED_KERNELS
from bitnet_hal.testing.launches import tuning_queries
from bitnet_opencl import clc
from bitnet_opencl.clc.tuning import candidate_tunings
from bitnet_opencl.describe import KNOWN


def devices() -> list[DeviceInfo]:
    """Return CPUs and GPUs of several group sizes, and an NVIDIA GPU with tensor cores."""
    found = []
    for kind, max_group in product((DeviceType.SOFTWARE, DeviceType.INTEGRATED, DeviceType.GPU), (64, 256, 1024)):
        for nvidia in (False, True) if kind is DeviceType.GPU and max_group == 1024 else (False,):
            able = {"ptx": nvidia, "nvidia": nvidia}
            kernels = frozenset(name for name, ability in KNOWN["kernels"].items() if not ability or able[ability])
            sizes = {"compute_units": 132, "members": 132 if nvidia else 0, "max_group": max_group, "lanes": 32}
            found.append(DeviceInfo("opencl", 0, "x", kind, kernels=kernels, extra={**able, **sizes}))
    return found


def chosen_files(info: DeviceInfo) -> set[Path]:
    """Return the sources of all tunings of the launches that the device runs."""
    folders = clc.NVIDIA if info.extra["nvidia"] else clc.PORTABLE
    found = set()
    for query in tuning_queries(info):
        try:
            tunings = candidate_tunings(query)
        except UnsupportedError:
            continue
        sources = {tuning.source(query.spec.name) for tuning in tunings}
        if query.spec.name in ROTATED_KERNELS and info.extra["members"]:
            sources.add(f"{query.spec.name}_product")  # for recordings
        for name in {f"{source}.cl" for source in sources}:
            places = [folder / name for folder in folders if (folder / name).exists()]
            assert places, f"{name} is missing"
            found.add(places[0])
    return found


@pytest.mark.parametrize(
    "info", devices(), ids=lambda info: f"{info.type.value}-{info.extra['max_group']}{'-nvidia' * info.extra['ptx']}"
)
def test_every_variant_has_its_source(info: DeviceInfo) -> None:
    assert chosen_files(info)


def test_every_source_is_chosen_by_some_device() -> None:
    """So that the launches above reach all variants, and no file is left behind."""
    chosen = set().union(*(chosen_files(info) for info in devices()))
    assert chosen == {path for folder in clc.NVIDIA for path in folder.glob("*.cl")}
