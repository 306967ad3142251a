"""Every variant that tuning chooses has its source, for all classes of devices.

A kernel or variant that only some GPUs use would otherwise fail on their owners' machines alone.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE, ROTATED_KERNELS
from bitnet_hal.testing.launches import tuning_queries
from bitnet_hal.tuning.query import TuningQuery
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


@pytest.mark.parametrize(
    ("model", "rows", "variant"),
    [
        *(("2b4t", 1, ""), ("2b4t", 4, "few"), ("2b4t", 5, "batch"), ("2b4t", 64, "batch")),
        *(("8b", 1, ""), ("8b", 2, "batch"), ("8b", 32, "batch")),
    ],
)
def test_a_layer_of_several_requests(model: str, rows: int, variant: str) -> None:
    """Its tiles divide the warps, and its workspace holds the codes of all rows and their scales."""
    (gpu,) = (info for info in devices() if info.extra["nvidia"])
    hidden, ffn, heads, kv_heads, block = {"2b4t": (2560, 6912, 20, 5, 0), "8b": (4096, 12288, 32, 8, 128)}[model]
    params = {"rows": rows, "hidden": hidden, "ffn": ffn, "n_heads": heads, "n_kv_heads": kv_heads, "head_dim": 128}
    constants = {"BLOCK": block, "ABLOCK": 32 if block else 0, "KV": 1, "NORM": 1, "ACT": 0}
    (tuning,) = candidate_tunings(TuningQuery(CATALOGUE["decoder_layer"], constants, params, gpu))
    assert tuning.variant == variant
    if variant == "batch":
        assert all(16 % tuning.private[f"SPLIT_{name}"] == 0 for name in ("QKV", "X", "UP"))
        codes = max(rows, 8) * (ffn + 8 * (ffn // 32 if block else 1))
        assert tuning.workspace >= 4 * tuning.private["CODES_AT"] + codes


def test_a_layer_of_more_than_a_batch_is_separate_launches() -> None:
    (gpu,) = (info for info in devices() if info.extra["nvidia"])
    params = {"rows": 65, "hidden": 2560, "ffn": 6912, "n_heads": 20, "n_kv_heads": 5, "head_dim": 128}
    constants = {"BLOCK": 0, "ABLOCK": 0, "KV": 1, "NORM": 1, "ACT": 0}
    with pytest.raises(UnsupportedError, match="65 rows"):
        candidate_tunings(TuningQuery(CATALOGUE["decoder_layer"], constants, params, gpu))
