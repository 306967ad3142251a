"""Tile sizes that depend on the machine."""

import pytest
from bitnet_cpu.tuning import select_tuning
from bitnet_hal.kernels.base import ATTENTION


@pytest.mark.parametrize(("rows", "threads", "heads"), [(1, 2, 4), (1, 9, 4), (1, 16, 2), (1, 64, 1), (4, 16, 4)])
def test_decoding_attention_spreads_over_threads(rows: int, threads: int, heads: int) -> None:
    params = {"rows": rows, "n_heads": 20, "n_kv_heads": 5}
    assert select_tuning(ATTENTION, params, 32, threads).tile == {"TILE_N": heads, "TILE_T": 1, "SPLITS": 1}
