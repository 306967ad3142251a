"""Which tiles prompts take on a GPU with warpgroup products."""

from __future__ import annotations

import pytest
from bitnet_core.errors import UnsupportedError
from bitnet_core.hal import Tuning
from bitnet_cuda.tensor_tiles import BLOCK_STREAM, MOST_SHARED, STREAM, WIDE, choose


def chosen(kernel: str, rows: int, outs: int, block: int, ablock: int) -> Tuning | None:
    params = {"rows": rows, "outs": outs, "width": 4096, "y_stride": outs, "y_first": 0}
    return choose(kernel, {"BLOCK": block, "ABLOCK": ablock}, params, wgmma=True)


@pytest.mark.parametrize("tile", [*STREAM.values(), *WIDE.values(), BLOCK_STREAM])
def test_stages_fit_a_block(tile: Tuning) -> None:
    assert tile.private["SHARED"] <= MOST_SHARED


@pytest.mark.parametrize(
    ("rows", "outs", "tile"), [(512, 6144, 192), (512, 4096, 128), (512, 24576, 256), (1024, 4096, 256)]
)
def test_the_tiles_soonest_done_are_taken(rows: int, outs: int, tile: int) -> None:
    assert chosen("matmul_ternary_block", rows, outs, 128, 128) is WIDE[tile]


@pytest.mark.parametrize(("block", "ablock"), [(128, 32), (64, 128), (128, 0)])
def test_finer_scales_have_their_own_kernel(block: int, ablock: int) -> None:
    assert chosen("matmul_ternary_block", 512, 4096, block, ablock) is BLOCK_STREAM
    with pytest.raises(UnsupportedError, match="no tile for 512 rows"):
        chosen("matmul_ternary_glu", 512, 4096, block, ablock)


def test_gate_and_up_are_joined_for_prompts_alone() -> None:
    assert chosen("matmul_ternary_glu", 65, 4096, 256, 128) is WIDE[256]
    for rows, outs in ((64, 4096), (512, 4100)):
        with pytest.raises(UnsupportedError, match="no tile"):
            chosen("matmul_ternary_glu", rows, outs, 128, 128)
