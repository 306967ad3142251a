"""The limits of kernels for few rows, which their tunings must keep."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from bitnet_cuda import decode_tiles, tuning
from bitnet_cuda.kernels.portable.tiles import MEETINGS, WORKSPACE
from bitnet_cuda.limits import MOST_SHARED
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.plugin import FEW_ROWS, Tuning
from bitnet_hal.rounding import ceil_div


def attention_shapes() -> Iterator[tuple[int, int, int, int]]:
    """Yield (rows, heads, key/value heads, head_dim) from one row of a small model to a batch of a large one."""
    groups = ((1, 1), (3, 1), (11, 1), (20, 5), (32, 8), (64, 8), (40, 40))
    for rows, (heads, kv_heads), head_dim in itertools.product((1, 2, 8, 33, 512), groups, (6, 32, 64, 80, 128, 256)):
        yield rows, heads, kv_heads, head_dim


def test_mixed_rows_have_one_tuning_that_fits_its_workspace_and_the_block() -> None:
    spec = CATALOGUE["rope_attention_mixed"]
    for rows, heads, kv_heads, head_dim in attention_shapes():
        params = {"rows": rows, "n_heads": heads, "n_kv_heads": kv_heads, "head_dim": head_dim}

        def chosen(rows: int, params: dict[str, int] = params) -> Tuning:
            return tuning.select_tuning(spec, {"KV": 1}, {**params, "rows": rows}, tensor_cores=True, wgmma=True)

        if rows > 8 or head_dim not in (64, 128, 256):
            with pytest.raises(UnsupportedError, match="launch the rotation and attention separately"):
                chosen(rows)
            continue
        tuned = chosen(rows)
        assert tuned == chosen(1) == chosen(8)
        tile = tuned.tile
        assert heads // kv_heads % tile["TILE_N"] == 0
        assert tile["TILE_N"] <= 4
        assert tuned.workspace == 4 * MEETINGS + 4 * 8 * heads * tuned.private["SHARES"] * (head_dim + 4)
        assert 8 * heads <= MEETINGS
        assert tuned.private["SHARED"] <= 192 << 10
        assert tuned.private["FRESH"] * head_dim // 8 <= tuned.private["GROUP"], "a thread stores a chunk of a value"


@pytest.mark.parametrize("tensor_cores", [True, False])
def test_parts_of_attention_fit_the_workspace_and_the_block(tensor_cores: bool) -> None:
    for rows, heads, kv_heads, head_dim in attention_shapes():
        params = {"rows": rows, "n_heads": heads, "n_kv_heads": kv_heads, "head_dim": head_dim}
        tuned = tuning.select_tuning(
            CATALOGUE["rope_attention"], {"KV": 1}, params, tensor_cores=tensor_cores, wgmma=False
        )
        hopper = tuning.select_tuning(
            CATALOGUE["rope_attention"], {"KV": 1}, params, tensor_cores=tensor_cores, wgmma=True
        )
        assert tuned.private.get("SHARED", 0) <= 64 << 10, "with 32 KiB of its own, on all GPUs"
        assert hopper.private.get("SHARED", 0) <= 192 << 10
        assert tuned.workspace == WORKSPACE
        tile, private = tuned.tile, tuned.private
        assert heads // kv_heads % tile["TILE_N"] == 0, "a block's heads share a key/value head"
        assert tile["TILE_N"] * head_dim <= 1024, "shared memory"
        if tile["SPLITS"] > 1:
            parts = 4 * rows * heads * tile["SPLITS"] * (head_dim + 4)
            assert 4 * MEETINGS + parts <= WORKSPACE
            assert rows * heads <= MEETINGS
        if "LANES" in private:
            assert 32 % private["LANES"] == 0
            assert 8 * private["LANES"] >= head_dim


def test_attention_of_few_rows_has_one_tuning_whatever_their_number() -> None:
    """A row's positions are cut by the tuning, so it must be the same for a row alone and among FEW_ROWS."""
    for rows, heads, kv_heads, head_dim in attention_shapes():
        params = {"rows": rows, "n_heads": heads, "n_kv_heads": kv_heads, "head_dim": head_dim}
        tunings = {}
        for count in (1, rows):
            tunings[count] = tuning.select_tuning(
                CATALOGUE["attention"], {"KV": 0}, {**params, "rows": count}, tensor_cores=True, wgmma=True
            )
        tuned = tunings[1]
        assert (tunings[rows] == tuned) is (rows <= FEW_ROWS)
        tile_n, splits = tuned.tile["TILE_N"], tuned.tile["SPLITS"]
        assert heads // kv_heads % tile_n == 0, "a block's heads share a key/value head"
        assert 4 * MEETINGS + 4 * FEW_ROWS * heads * splits * (head_dim + 4) <= tuned.workspace
        assert splits == 1 or FEW_ROWS * (heads // tile_n) <= MEETINGS
        assert 32 % tuned.private["LANES"] == 0
        assert 8 * tuned.private["LANES"] >= head_dim


def test_parts_of_argmax_fit_the_workspace() -> None:
    for rows, vocab in itertools.product((1, 8, 64, 65, 512), (100, 32000, 128256)):
        tuned = tuning.select_tuning(
            CATALOGUE["argmax_advance"], {}, {"rows": rows, "vocab": vocab}, tensor_cores=True, wgmma=False
        )
        if (splits := tuned.tile["SPLITS"]) > 1:
            assert 4 * MEETINGS + 12 * rows * splits <= tuned.workspace
            assert rows <= MEETINGS
            assert splits <= tuned.private["GROUP"]


@pytest.mark.parametrize("width", [128, 640, 2560, 6912, 8704, 14336, 32768])
@pytest.mark.parametrize("outs", [1, 2560, 13824])
def test_warps_cover_all_columns(width: int, outs: int) -> None:
    tuned = decode_tiles.ternary({"width": width}, outs)
    group, steps = tuned.private["GROUP"], tuned.private["STEPS"]
    assert group <= 1024
    assert group // 32 * steps * 256 >= width
    assert tuned.tile["TILE_N"] <= group


@pytest.mark.parametrize("width", [512, 1536, 4096, 5120, 6144, 6656, 11776, 17408, 32768])
@pytest.mark.parametrize("outs", [8, 5120, 34816, 248320])
@pytest.mark.parametrize("block", [128, 256])
def test_weights_of_one_row_come_by_stages_that_a_multiprocessor_holds(width: int, outs: int, block: int) -> None:
    params = {"rows": 1, "width": width, "outs": outs, "y_stride": outs, "y_first": 0}
    spec, constants = CATALOGUE["matmul_ternary_block"], {"ADD": 1, "BLOCK": block, "ABLOCK": 128}
    tuned = tuning.select_tuning(spec, constants, params, tensor_cores=True, wgmma=True)
    private, warps = tuned.private, tuned.private["GROUP"] // 32 - 1
    assert tuned.variant == "ring"
    assert warps * private["STEPS"] * 256 >= width, "warps have all columns"
    assert 2 <= warps + 1 <= 32
    assert private["STAGES"] >= 2, "two are multiplied at a time"
    assert private["SHARED"] + 4 * 2 * warps * 32 + 16 * private["STAGES"] + 8 <= MOST_SHARED
    assert private["SHARED"] - 1024 == private["STAGES"] * 8 * (width // 4 + 4 * ceil_div(width, block))
    others = ({"outs": outs + 1}, {"width": width + 128}, {"rows": 2})
    odd = [tuning.select_tuning(spec, constants, params | one, tensor_cores=True, wgmma=True) for one in others]
    odd.append(tuning.select_tuning(spec, constants | {"ABLOCK": 32}, params, tensor_cores=True, wgmma=True))
    odd.append(tuning.select_tuning(spec, constants, params, tensor_cores=True, wgmma=False))
    assert "ring" not in [one.variant for one in odd]


@pytest.mark.parametrize("kernel", ["norm_matmul", "norm_matmul_glu"])
@pytest.mark.parametrize("block", [0, 128])
def test_rows_too_long_for_shared_memory_are_refused(kernel: str, block: int) -> None:
    params = {"rows": 1, "columns": 32_768, "width": 32_768, "outs": 256}
    tuned = decode_tiles.select_tuning(kernel, {"BLOCK": block}, params, wgmma=False)
    assert tuned is not None
    assert not block or tuned.tile["TILE_N"] <= tuned.private["GROUP"], "a thread for an output"
    warps, outs = tuned.private["GROUP"] // 32, tuned.tile["TILE_N"] * (2 if kernel == "norm_matmul_glu" else 1)
    scales = tuned.private["STEPS"] * warps * 8 * 4 if block else 0
    assert tuned.private["STEPS"] * warps * 256 + scales + 4 * warps * (outs + 3) <= 48 << 10
    with pytest.raises(UnsupportedError, match="32769 columns"):
        decode_tiles.select_tuning(kernel, {"BLOCK": block}, params | {"columns": 32_769, "width": 33_024}, wgmma=False)


@pytest.mark.parametrize("kernel", ["norm_matmul", "norm_matmul_glu"])
def test_several_rows_are_left_to_separate_launches(kernel: str) -> None:
    params = {"rows": 2, "columns": 2560, "width": 2560, "outs": 256}
    with pytest.raises(UnsupportedError, match="one row"):
        decode_tiles.select_tuning(kernel, {"BLOCK": 0}, params, wgmma=False)


@pytest.mark.parametrize("rows", [5, 8])
@pytest.mark.parametrize(("columns", "outs"), [(1, 1), (300, 40), (2560, 2560), (2560, 3840), (4096, 6144)])
def test_norms_of_five_to_eight_rows_are_joined(rows: int, columns: int, outs: int) -> None:
    """Check that warps norm all columns, groups of warps multiply all columns, and threads make all outputs."""
    width = ceil_div(columns, 128) * 128
    params = {"rows": rows, "columns": columns, "outs": outs, "width": width}
    tuned = decode_tiles.select_tuning("norm_matmul", {"BLOCK": 0}, params, wgmma=False)
    assert tuned is not None
    group, tile_n, shares = (
        tuned.private["GROUP"],
        tuned.tile["TILE_N"],
        tuned.private["GROUP"] // 2 // tuned.tile["TILE_N"],
    )
    assert tuned.variant == "few"
    assert group % 32 == 0
    assert group <= 1024
    assert group // 32 * 128 >= width
    assert group >= 8 * tile_n
    assert shares * tile_n // 16 == group // 32
    assert tuned.private["SHARED"] >= 32 * shares * (tile_n + 4)
    with pytest.raises(UnsupportedError, match="4097 columns"):
        decode_tiles.select_tuning("norm_matmul", {"BLOCK": 0}, params | {"columns": 4097, "width": 4224}, wgmma=False)


@pytest.mark.parametrize("rows", [2, 8, 9, 16, 17, 32, 33, 64, 65])
def test_approximate_logits_fit_a_block(rows: int) -> None:
    params = {"rows": rows, "outs": 128256, "width": 2560, "stride": 128256}
    tuned = tuning.select_tuning(CATALOGUE["approx_logits"], {}, params, tensor_cores=True, wgmma=True)
    private, fixed = tuned.private, 4 * tuned.tile["TILE_N"] // 64 * tuned.tile["TILE_T"] + 512
    assert private["SHARED"] + fixed <= MOST_SHARED
    assert private["GROUP"] // 128 - 2 <= private["STAGES"], "each warpgroup that makes bytes has a stage to begin with"


@pytest.mark.parametrize("rows", [9, 16, 17, 32, 33, 64])
@pytest.mark.parametrize(("outs", "width", "add"), [(3840, 2560, 0), (2560, 2560, 1), (2560, 6912, 1), (40, 128, 0)])
def test_products_of_batches_are_on_the_gpu_at_once(rows: int, outs: int, width: int, add: int) -> None:
    params = {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
    tuned = tuning.select_tuning(CATALOGUE["matmul_ternary"], {"ADD": add}, params, tensor_cores=True, wgmma=True)
    private, splits = tuned.private, tuned.tile["SPLITS"]
    assert tuned.variant == "group"
    x, y, z = CATALOGUE["matmul_ternary"].grid(params, tuned.tile)
    assert x * y * z <= 132
    assert private["CLUSTERS"] == (splits == 2), "two parts of the columns are joined within a cluster"
    assert private["BLOCKS"] * private["SHARES"] * splits * 128 >= width
    assert private["UNPACKED"] <= private["BLOCKS"]
    assert private["SPAN_T"] // 4 % private["SHARES"] == 0


@pytest.mark.parametrize("rows", [5, 8, 9, 32, 33, 64, 65])
@pytest.mark.parametrize("width", [2560, 6912])
def test_norms_keep_their_threads(rows: int, width: int) -> None:
    """Check that the constants that spread the blocks leave the order of sums alone."""
    launch = CATALOGUE["rms_norm_quantize"], {"ABLOCK": 0}, {"rows": rows, "width": width, "stride": width}
    here = tuning.select_tuning(*launch, tensor_cores=True, wgmma=True).private
    elsewhere = tuning.select_tuning(*launch, tensor_cores=True, wgmma=False).private
    assert {name: here[name] for name in ("GROUP", "VECTORS")} == {
        name: elsewhere[name] for name in ("GROUP", "VECTORS")
    }
    assert here.get("SHARED", 0) <= 113 << 10
