"""Every variant that tuning chooses has its source, for GPUs and software adapters with and without subgroups."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.testing.launches import tuning_queries
from bitnet_webgpu.compile import KERNELS
from bitnet_webgpu.describe import KNOWN
from bitnet_webgpu.tuning import candidate_tunings


def adapters() -> list[DeviceInfo]:
    """Return an adapter for each combination of kind and size of subgroups."""
    found = []
    for kind, subgroups in product((DeviceType.SOFTWARE, DeviceType.INTEGRATED, DeviceType.GPU), (1, 8, 32)):
        fused = () if kind is DeviceType.SOFTWARE else KNOWN["fused"]
        extra = {"workgroup_storage": 32768, "subgroups": subgroups}
        kernels = frozenset({*KNOWN["everywhere"], *fused})
        found.append(DeviceInfo("webgpu", 0, "x", kind, kernels=kernels, extra=extra))
    return found


def chosen_files(info: DeviceInfo) -> set[Path]:
    """Return the sources of all tunings of the launches that the adapter runs."""
    found = set()
    for query in tuning_queries(info):
        try:
            tunings = candidate_tunings(query)
        except UnsupportedError:
            continue
        found |= {KERNELS / f"{tuning.source(query.spec.name)}.wgsl" for tuning in tunings}
    return found


@pytest.mark.parametrize("info", adapters(), ids=lambda info: f"{info.type.value}-{info.extra['subgroups']}")
def test_every_variant_has_its_source(info: DeviceInfo) -> None:
    assert not [path.name for path in chosen_files(info) if not path.exists()]


def test_every_source_is_chosen_by_some_adapter() -> None:
    """So that the launches above reach all variants, and no file is left behind."""
    files = set(KERNELS.glob("*.wgsl"))
    texts = "\n".join(path.read_text(encoding="utf-8") for path in files)
    included = {KERNELS / name for name in re.findall(r'#include "(.*)"', texts)}
    chosen = set().union(*(chosen_files(info) for info in adapters()))
    assert files - included <= chosen
    assert chosen <= files
