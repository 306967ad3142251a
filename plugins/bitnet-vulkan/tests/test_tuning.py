"""Every variant that tuning chooses has a SPIR-V file, for all kinds of devices with and without their abilities.

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
from bitnet_vulkan.compile import KERNELS, source_of
from bitnet_vulkan.describe import offered
from bitnet_vulkan.tuning import candidate_tunings


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
            "narrow-matrix": matrix,
            "import": 0,
            "resident": 132 if subgroups else 0,
        }
        extra = {**able, "shared_memory": 49152}
        found.append(DeviceInfo("vulkan", 0, "x", kind, kernels=offered("kernels", able), extra=extra))
    return found


def chosen_files(info: DeviceInfo) -> set[Path]:
    """Return the SPIR-V files of all tunings of the launches that the device runs."""
    found = set()
    for query in tuning_queries(info):
        try:
            tunings = candidate_tunings(query)
        except UnsupportedError:
            continue
        sources = [tuning.source(query.spec.name) for tuning in tunings]
        if query.spec.name in ROTATED_KERNELS and info.extra["resident"] and info.type is not DeviceType.SOFTWARE:
            sources.append(f"{query.spec.name}_product")  # for recordings
        found |= {source_of(source, info) for source in sources}
    return found


@pytest.mark.parametrize("info", devices(), ids=lambda info: f"{info.type.value}-{info.extra['subgroups']}")
def test_every_variant_has_its_spirv_file(info: DeviceInfo) -> None:
    assert chosen_files(info)


def test_every_spirv_file_is_chosen_by_some_device() -> None:
    """So that the launches above reach all variants, and no file is left behind."""
    chosen = set().union(*(chosen_files(info) for info in devices()))
    assert chosen == set(KERNELS.glob("*.spv"))


def test_products_of_very_wide_rows_have_many_workgroups() -> None:
    """In workgroups of 1,024, as a norm of such rows has, few would have all the work of Bonsai 27B's down product."""
    gpu = next(info for info in devices() if info.type is DeviceType.GPU and info.extra["subgroups"] == 32)
    spec = CATALOGUE["matmul_ternary_block"]
    params = {"rows": 1, "outs": 5120, "width": 17408, "y_stride": 5120, "y_first": 0}
    for ablock in (0, 128):
        tunings = candidate_tunings(TuningQuery(spec, {"ADD": 1, "BLOCK": 128, "ABLOCK": ablock}, params, gpu))
        assert {tuning.private["GROUP"] for tuning in tunings} == {256}
        assert all(tuning.tile["TILE_N"] * tuning.private["LANES"] in (256, 512) for tuning in tunings)


SHAPES = {"2b4t": (2560, 6912, 20, 5, 0), "8b": (4096, 12288, 32, 8, 128)}
"""Columns of x and of the gate, query heads, key/value heads, and columns that share a weight scale, by model."""


def layer_of(model: str, rows: int, *, matrix: int) -> TuningQuery:
    """Return the query of a layer on a GPU with or without cooperative matrices."""
    gpu = next(
        info
        for info in devices()
        if info.type is DeviceType.GPU and info.extra["subgroups"] == 32 and info.extra["matrix"] == matrix
    )
    hidden, ffn, heads, kv_heads, block = SHAPES[model]
    params = {"rows": rows, "hidden": hidden, "ffn": ffn, "n_heads": heads, "n_kv_heads": kv_heads, "head_dim": 128}
    constants = {"BLOCK": block, "ABLOCK": 32 if block else 0, "KV": 1, "NORM": 1, "ACT": 0}
    return TuningQuery(CATALOGUE["decoder_layer"], constants, params, gpu)


@pytest.mark.parametrize(
    ("model", "rows", "variant"),
    [("2b4t", 4, "resident"), ("2b4t", 5, "matrix"), ("2b4t", 8, "matrix"), ("8b", 4, "resident"), ("8b", 8, "block")],
)
def test_layers_of_five_to_eight_rows_take_matrix_units(model: str, rows: int, variant: str) -> None:
    (tuning,) = candidate_tunings(layer_of(model, rows, matrix=1))
    assert tuning.variant == variant
    assert tuning.private["ROOM"] >= rows
    codes = rows * SHAPES[model][1]
    assert variant == "resident" or tuning.workspace > codes


@pytest.mark.parametrize(
    ("model", "rows", "at_once"),
    [("2b4t", 2, 2), ("2b4t", 4, 4), ("2b4t", 8, 4), ("2b4t", 32, 0), ("8b", 4, 2), ("8b", 8, 0)],
)
def test_a_layer_holds_as_many_rows_as_fit_shared_memory(model: str, rows: int, at_once: int) -> None:
    """0: rows of separate launches. Codes of rows take most of the 48 KiB."""
    query = layer_of(model, rows, matrix=0)
    _, ffn, heads, kv_heads, _ = SHAPES[model]
    if not at_once:
        with pytest.raises(UnsupportedError):
            candidate_tunings(query)
        return
    (tuning,) = candidate_tunings(query)
    assert tuning.private["TILE_T"] == at_once
    assert at_once * ffn < 49152
    shares = max(132, rows * kv_heads)
    assert tuning.workspace >= 4 * shares * heads // kv_heads * 130
