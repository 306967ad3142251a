"""The choice of kernels for delta nets and rotated weights."""

from __future__ import annotations

import pytest
from bitnet_cuda import delta_tiles
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.plugin import Tuning

HEADS = {"n_heads": 48, "n_key_heads": 16, "key_dim": 128, "value_dim": 128}


def rule(rows: int, *, tensor_cores: bool = True, wgmma: bool = True, **heads: int) -> Tuning:
    found = delta_tiles.select_tuning(
        "gated_delta_rule", {}, {**HEADS, **heads, "rows": rows}, tensor_cores=tensor_cores, wgmma=wgmma
    )
    assert found
    return found


def test_prompts_go_in_chunks_where_heads_are_whole_tiles() -> None:
    assert [rule(rows).variant for rows in (1, 64, 65, 512)] == ["", "", "chunk", "chunk"]
    assert rule(512, tensor_cores=False).variant == ""
    assert [rule(512, key_dim=dim).variant for dim in (60, 64, 256)] == ["", "chunk", ""]
    assert [rule(512, value_dim=dim).variant for dim in (7, 40)] == ["", "chunk"]


@pytest.mark.parametrize("wgmma", [False, True])
@pytest.mark.parametrize("value_dim", [16, 64, 128, 256])
def test_chunks_fit_the_shared_memory_of_their_gpus(wgmma: bool, value_dim: int) -> None:
    tuning = rule(512, wgmma=wgmma, value_dim=value_dim)
    assert value_dim % tuning.tile["TILE_N"] == 0
    assert tuning.private["SHARED"] <= (227 << 10 if wgmma else 99 << 10)


def test_a_norm_is_fused_to_a_rotation_where_a_head_is_a_warps() -> None:
    def tuned(norm: int, **shape: int) -> Tuning | None:
        params = {"rows": 1, "n_heads": 48, "head_dim": 128, "block": 1024, **shape}
        constants = {"NORM": norm, "ACT": 1, "ABLOCK": 32}
        return delta_tiles.select_tuning("gated_rotate_quantize", constants, params, tensor_cores=True, wgmma=True)

    assert tuned(1)
    assert tuned(0, head_dim=256)
    for shape in ({"head_dim": 256}, {"head_dim": 96}, {"block": 64}, {"block": 8192}):
        with pytest.raises(UnsupportedError):
            tuned(1, **shape)


@pytest.mark.parametrize(("rows", "shares"), [(1, 1), (2, 2), (16, 16), (33, 32), (64, 32), (65, 1)])
def test_blocks_share_the_sequences_of_a_batch(rows: int, shares: int) -> None:
    tuning = rule(rows, tensor_cores=False)
    assert tuning.private["COLUMNS"] == shares * tuning.tile["TILE_N"]
    params = {"rows": rows, "channels": 10240, "taps": 4}
    convolution = delta_tiles.select_tuning("causal_conv1d", {}, params, tensor_cores=False, wgmma=False)
    assert convolution
    if rows <= 64:
        assert (convolution.variant, convolution.private["GROUP"]) == ("runs", shares * convolution.tile["TILE_N"])
    else:
        assert convolution.variant == ""


def test_a_sum_of_gates_has_the_same_order_for_any_number_of_rows() -> None:
    params = {"outs": 96, "width": 5120}
    tunings = [
        delta_tiles.select_tuning("matmul_dense", {"DTYPE": 0}, {**params, "rows": rows}, tensor_cores=True, wgmma=True)
        for rows in (1, 8, 16, 32, 64, 512)
    ]
    assert {(found.private["GROUP"], found.private["EACH"]) for found in tunings if found} == {(256, 5)}
    assert [found.tile["TILE_N"] for found in tunings if found] == [1, 1, 1, 2, 4, 8]


def test_gates_alone_have_a_product_of_their_own() -> None:
    def variant(outs: int, width: int, dtype: int = 1) -> str | None:
        params = {"rows": 1, "outs": outs, "width": width}
        found = delta_tiles.select_tuning("matmul_dense", {"DTYPE": dtype}, params, tensor_cores=True, wgmma=True)
        return found and found.variant

    assert variant(96, 5120) == "narrow"
    assert [variant(*shape) for shape in ((128256, 2560), (96, 512), (96, 5122), (96, 5120, 3))] == [None] * 4
