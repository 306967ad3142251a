"""The conformance kit on the emulated GPU, once with tensor cores and once held to dp4a."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_cuda import batch_tiles, block_tiles, compile, decode_tiles, joined_norms, recording, tensor_tiles
from bitnet_cuda.describe import TENSOR_CORE_KERNELS, device_infos
from bitnet_cuda.device import CudaDevice
from bitnet_hal.device import DeviceInfo, Tuning
from bitnet_hal.driver.enumerate import by_index
from bitnet_hal.errors import GpuTimeoutError
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_hal.kernels.catalogue import CATALOGUE, SILU
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.testing import BackendConformance
from bitnet_hal.testing.cases.case import Case, CaseLaunch, blank, expected
from bitnet_hal.testing.cases.fused import _matmul_glu
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.cases.ternary import _block
from bitnet_hal.testing.compare import check_outputs
from bitnet_hal.testing.workbench import Bench

sys.path.insert(0, str(Path(__file__).parent.parent))

from emulator import build

TILED = ("a128-b128-prompt", "a128-b256-prompt")
"""The cases with enough rows for a tile of prompts."""
FINE = ("a32-b128-prompt", "a32-b64-prompt", "a0-b128-prompt", "a128-b64-prompt")
"""Those with scales of 32 columns, or of 64 columns or whole rows beside coarser ones."""

build.use()  # in this process alone: ../test_emulated.py starts it


class TestConformance(BackendConformance):
    backend = "cuda"

    def compile_broken_source(self, device: Any) -> None:
        with patch.object(compile, "source", lambda *_: "this is not C++"):
            device.compile(RMS_NORM, {}, Tuning(private={"GROUP": 32}))

    def test_a_wait_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = CudaDevice(device_infos()[0])
        device.timeout = 0.05
        with monkeypatch.context() as patched:
            patched.setattr(device.api, "cuStreamQuery", lambda _: (600,))  # CUDA_ERROR_NOT_READY, for ever
            with pytest.raises(GpuTimeoutError, match=r"0\.05 s"):
                device.synchronize()
        device.synchronize()
        device.close()

    @pytest.mark.parametrize("size", tensor_tiles.WIDE)
    def test_tiles_for_an_activation_scale_of_128_columns(
        self, bench: Bench, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Run each tile, even those that the plugin does not choose for so few rows."""
        monkeypatch.setattr(tensor_tiles, "WIDE", {size: tensor_tiles.WIDE[size]})
        run(bench, "matmul_ternary_block", *TILED)

    @pytest.mark.parametrize("size", tensor_tiles.BLOCK_STREAM)
    def test_tiles_for_activation_scales_of_32_columns(
        self, bench: Bench, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tensor_tiles, "BLOCK_STREAM", {size: tensor_tiles.BLOCK_STREAM[size]})
        run(bench, "matmul_ternary_block", *FINE)

    @pytest.mark.parametrize("size", tensor_tiles.STREAM)
    def test_tiles_that_one_block_takes_in_turns(
        self, bench: Bench, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Give one block several tiles, so that its warpgroups work on different tiles."""
        tile = tensor_tiles.STREAM[size]
        alone = replace(tile, tile={**tile.tile, "SPLITS": 1})
        monkeypatch.setattr(tensor_tiles, "STREAM", {size: alone})
        run(bench, "matmul_ternary", "prompt-t150", "exact-t257")
        if size == (256, 128):
            run(bench, "matmul_ternary_glu", "relu2-t150", "silu-t150")

    @pytest.mark.parametrize(("row_tiles", "shares", "splits"), [(1, 4, 1), (1, 4, 2), (3, 1, 1)])
    def test_a_row_with_block_scales_has_the_bits_that_it_has_among_others(
        self, bench: Bench, row_tiles: int, shares: int, splits: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Compare the forms of the batches' kernel, with more lines of columns than stages."""

        def two_stages(_: Any, params: Params) -> Tuning:
            span_t = next(t for t in (8, 16, 32, 64) if params["rows"] <= t)
            tile = batch_tiles.block_group_tile(span_t, int(params["width"]), row_tiles, shares, splits)
            assert tile is not None
            return replace(tile, private={**tile.private, "STAGES": 2})

        monkeypatch.setattr(decode_tiles, "block_rows", lambda *_: None)
        monkeypatch.setattr(decode_tiles, "block_group", two_stages)
        batch = next(case for case in cases_of("matmul_ternary_block") if case.label.startswith("a32-b128-batch-t64"))
        whole = batch.launch()
        want = product(bench, batch, whole, 0, 64)
        for first, count in ((0, 2), (62, 2), (30, 9), (7, 17), (1, 33)):
            assert np.array_equal(product(bench, batch, whole, first, count), want[first : first + count])

    @pytest.mark.parametrize(
        ("pieces", "warps", "splits", "steps"),
        [(5, 17, 1, 1), (3, 9, 2, 1), (9, 5, 4, 1), (3, 6, 1, 3), (1, 9, 1, 2), (5, 2, 2, 5)],
    )
    def test_one_to_eight_rows_with_block_scales_have_the_same_bits(
        self, bench: Bench, pieces: int, warps: int, splits: int, steps: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Compare rows of one tuning, with blocks that share columns and with more pieces than are under way."""
        tile = batch_tiles.block_rows_tile(pieces, warps, splits, steps)
        assert tile is not None
        monkeypatch.setattr(decode_tiles, "block_rows", lambda *_: tile)
        monkeypatch.setattr(decode_tiles, "block_ring", lambda *_: None)
        monkeypatch.setattr(decode_tiles, "block_row", lambda *_, **__: tile)
        batch = next(case for case in cases_of("matmul_ternary_block") if case.label.startswith("a32-b128-batch-t64"))
        whole = batch.launch()
        want = product(bench, batch, whole, 0, 8)
        for first, count in ((0, 1), (7, 1), (2, 3), (1, 7)):
            assert np.array_equal(product(bench, batch, whole, first, count), want[first : first + count])

    @pytest.mark.parametrize(
        ("few", "tiles"),
        [
            ((5, 17, 1, 1), (4, 2, 3)),
            ((3, 17, 1, 1), (6, 3, 2)),
            ((3, 17, 1, 1), (3, 3, 2)),
            ((3, 9, 2, 1), (2, 2, 2)),
            ((3, 6, 1, 3), (3, 3, 2)),
            ((5, 2, 2, 5), (1, 1, 3)),
            ((1, 32, 1, 1), (6, 2, 1)),
        ],
    )
    def test_more_rows_with_block_scales_have_the_bits_of_few(
        self, bench: Bench, few: tuple[int, ...], tiles: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Compare rows of the tuning for few rows with those of tiles; few: pieces, warps, splits, steps; tiles:
        pieces, pieces of a round, tiles.
        """
        _, warps, splits, steps = few
        pieces, together, tile_count = tiles
        more = block_tiles.tile(warps, steps, splits, pieces, together, tile_count, 1)
        assert more is not None
        monkeypatch.setattr(decode_tiles, "block_rows", lambda *_: batch_tiles.block_rows_tile(*few))
        monkeypatch.setattr(decode_tiles, "block_group", lambda *_: more)
        batch = next(case for case in cases_of("matmul_ternary_block") if case.label.startswith("a32-b128-batch-t64"))
        whole = batch.launch()
        want = np.concatenate([product(bench, batch, whole, first, 8) for first in range(0, 64, 8)])
        for first, count in ((0, 64), (55, 9), (7, 17), (1, 33)):
            assert np.array_equal(product(bench, batch, whole, first, count), want[first : first + count])

    @pytest.mark.parametrize("rows", [3, 8, 20, 24])
    def test_gate_and_up_quantize_their_output_in_a_recording(
        self, bench: Bench, rows: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With 24 rows, they have the kernel with the sums of few rows."""
        few = batch_tiles.block_rows_tile(4, 2, 1)
        many = batch_tiles.block_group_tile(32, 384, 3, 1)
        assert few is not None
        assert many is not None
        many = replace(many, variant="block_group", tile={**many.tile, "TILE_N": 96})
        tiles = block_tiles.tile(2, 1, 1, 4, 2, 2, 2)
        few = replace(few, variant="block_rows", tile={**few.tile, "TILE_N": 32})
        monkeypatch.setattr(batch_tiles, "glu", lambda *_, **__: few if rows <= 8 else many if rows == 20 else tiles)
        launch = _matmul_glu(np.random.default_rng(rows), rows, 256, 384, SILU, 128, 32)
        joined_as_apart(bench, "matmul_ternary_glu", launch, "m", rows, 256)

    @pytest.mark.parametrize(("pieces", "warps", "splits", "steps"), [(2, 2, 1, 1), (4, 1, 2, 1), (2, 1, 1, 2)])
    @pytest.mark.parametrize("rows", [1, 3, 8])
    def test_two_products_share_the_norm_between_them(
        self,
        bench: Bench,
        rows: int,
        pieces: int,
        warps: int,
        splits: int,
        steps: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        before = batch_tiles.block_rows_tile(pieces, warps, splits, steps)
        after = batch_tiles.block_rows_tile(3, 2, 1)
        glu = batch_tiles.block_rows_tile(4, 2, 1)
        assert glu is not None
        glu = replace(glu, variant="block_rows", tile={**glu.tile, "TILE_N": 32})
        tiles = {0: after, 1: before}
        monkeypatch.setattr(decode_tiles, "ternary_block", lambda constants, *_, **__: tiles[constants["ADD"]])
        monkeypatch.setattr(batch_tiles, "glu", lambda *_, **__: glu)
        for gated in (False, True):
            norm_as_apart(bench, rows, gated=gated)

    @pytest.mark.parametrize(("steps", "sections", "together"), [(1, 1, 2), (2, 1, 4), (1, 2, 4)])
    def test_two_products_of_more_rows_share_the_norm_between_them(
        self, bench: Bench, steps: int, sections: int, together: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = block_tiles.tile(2, steps, sections, 4, together, 2, 1)
        after = block_tiles.tile(2, 1, 1, 4, 2, 3, 1)
        tiles = {0: after, 1: before}
        monkeypatch.setattr(decode_tiles, "ternary_block", lambda constants, *_, **__: tiles[constants["ADD"]])
        monkeypatch.setattr(batch_tiles, "glu", lambda *_, **__: block_tiles.tile(2, 1, 1, 4, 2, 2, 2))
        for gated in (False, True):
            norm_as_apart(bench, 27, gated=gated)

    @pytest.mark.parametrize("group_size", [32, 128])
    @pytest.mark.parametrize("attention", ["rope_attention", "rope_attention_mixed"])
    def test_attention_quantizes_its_output_in_a_recording(self, bench: Bench, attention: str, group_size: int) -> None:
        chosen = [case for case in cases_of(attention) if "f16" in case.label]
        found = [case.launch() for case in chosen]
        found = [one for one in found if one.params["head_dim"] == 128 and one.params["rows"] > 1]
        assert found
        for launch in found:
            width = int(launch.params["n_heads"] * 128)
            joined_as_apart(bench, attention, launch, "out", int(launch.params["rows"]), width, group_size)

    @pytest.mark.parametrize("stages", [2, 3])
    def test_a_row_whose_weights_are_more_than_is_under_way(
        self, bench: Bench, stages: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Give all weights to one block, so that it refills its stages repeatedly."""
        ring = decode_tiles.block_ring

        def alone(constants: Constants, params: Params) -> Tuning | None:
            tile = ring(constants, params)
            if tile is None:
                return None
            private = tile.private
            each = (private["SHARED"] - 1024) // private["STAGES"]
            less = {**private, "STAGES": stages, "SHARED": stages * each + 1024}
            return replace(tile, tile={**tile.tile, "SPLITS": 1}, private=less)

        monkeypatch.setattr(decode_tiles, "block_ring", alone)
        run(bench, "matmul_ternary_block", "a128-b128-row", "a128-b256-row", "a0-b128-row", "a128-exact-row")

    @pytest.mark.parametrize("rows", [1, 1 << 20])
    def test_warpgroups_of_attention_share_rows_or_positions(
        self, bench: Bench, rows: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tile = tensor_tiles.attention_tile
        monkeypatch.setattr(
            tensor_tiles, "attention_tile", lambda params, **wgmma: tile({**params, "rows": rows}, **wgmma)
        )
        run(bench, "attention", "prompt-d128", "prompts-d128")


def joined_as_apart(
    bench: Bench, kernel: str, launch: CaseLaunch, output: str, rows: int, width: int, group_size: int = 32
) -> None:
    """Compare the codes that a recording makes of a kernel's output with those of separate launches."""
    device: Any = bench.device
    first = bench.prepare(CATALOGUE[kernel], launch)
    quantize = CaseLaunch(
        {"rows": rows, "width": width, "stride": width, "eps": 1e-6},
        {
            "x": np.zeros(rows * width, np.float32),
            "gamma": np.ones(width, np.float32),
            "q": blank(rows * width, "i8"),
            "scale": blank(rows * width // 32, "f32"),
            "qsum": blank(rows * width // 32, "i32"),
        },
        {"NORM": 0, "ABLOCK": group_size},
    )
    second = bench.prepare(CATALOGUE["rms_norm_quantize"], quantize, {"x": first.views[output]})
    names = ("x", "q", "scale", "qsum")
    first.run(device)
    second.run(device)
    apart = {name: bench.read(second.views[name]) for name in names}
    for name in names:
        bench.write(second.views[name], np.full(second.views[name].nbytes, 77, np.uint8))
    with device.record() as recorded:
        first.run(device)
        second.run(device)
    assert len(recording.joined(recorded.launches, lambda made, _: made)) == 1
    device.replay(recorded)
    device.synchronize()
    for name in names:
        assert np.array_equal(bench.read(second.views[name]), apart[name]), name
    bench.tidy()


def norm_as_apart(bench: Bench, rows: int, *, gated: bool) -> None:
    """Compare a norm between two products in a recording with separate launches.

    The second row is zeros, and the third has a NaN.
    """
    device: Any = bench.device
    width, outs = 256, 64
    product = Case("matmul_ternary_block", "before", _block, (rows, width, 384, 128, 1, False, 32)).launch()
    product.arrays["scale"].reshape(rows, -1)[1:2] = 0
    product.arrays["y"].reshape(rows, -1)[1:2] = 0
    product.arrays["y"].reshape(rows, -1)[2:3, 70] = np.nan
    before = bench.prepare(CATALOGUE["matmul_ternary_block"], product)
    quantize = CaseLaunch(
        {"rows": rows, "width": width, "stride": width, "eps": 1e-6},
        {
            "x": np.zeros(rows * width, np.float32),
            "gamma": np.random.default_rng(rows).uniform(-2, 2, width).astype(np.float32),
            "q": blank(rows * width, "i8"),
            "scale": blank(rows * width // 32, "f32"),
            "qsum": blank(rows * width // 32, "i32"),
        },
        {"NORM": 1, "ABLOCK": 32},
    )
    norm = bench.prepare(CATALOGUE["rms_norm_quantize"], quantize, {"x": before.views["y"]})
    shared = {name: norm.views[name] for name in ("q", "scale", "qsum")}
    if gated:
        case = Case("matmul_ternary_glu", "after", _matmul_glu, (rows, outs, width, SILU, 128, 32))
    else:
        case = Case("matmul_ternary_block", "after", _block, (rows, outs, width, 128, 0, False, 32))
    after = bench.prepare(case.spec, case.launch(), shared)
    outputs = {"y": before.views["y"], "result": after.views["m" if gated else "y"]}
    start = bench.read(outputs["y"]).copy()
    launches = before, norm, after
    for one in launches:
        one.run(device)
    apart = {name: bench.read(view).copy() for name, view in outputs.items()}
    assert np.isfinite(apart["result"].view(np.float32).reshape(rows, -1)[:2]).all()
    bench.write(outputs["y"], start)
    for view in (*shared.values(), outputs["result"]):
        bench.write(view, np.full(view.nbytes, 77, np.uint8))
    with device.record() as recorded:
        for one in launches:
            one.run(device)
    assert len(joined_norms.shared_norms(recorded.launches, lambda made, _: made, device._squares)) == 2
    device.replay(recorded)
    device.synchronize()
    for name, view in outputs.items():
        assert np.array_equal(bench.read(view), apart[name]), name
    bench.tidy()


def product(bench: Bench, case: Case, batch: CaseLaunch, first: int, count: int) -> npt.NDArray[np.uint32]:
    """Return the bits of y[count, outs] of matmul_ternary_block for rows first.. of a batch."""
    rows = batch.params["rows"]
    own = {
        name: array.reshape(rows, -1)[first : first + count]
        for name, array in batch.arrays.items()
        if name in "q scale qsum y"
    }
    part = replace(batch, params={**batch.params, "rows": count}, arrays={**batch.arrays, **own})
    launch, actual = bench.run(replace(case, build=lambda _: part, args=()))
    check_outputs(case, launch, expected(case.spec, launch), actual)
    return actual["y"].view(np.uint32).reshape(count, -1)


def run(bench: Bench, kernel: str, *labels: str) -> None:
    """Run the kernel's cases whose labels begin with one of `labels`."""
    chosen = [case for case in cases_of(kernel) if case.label.startswith(labels)]
    assert len(chosen) >= len(labels)
    for case in chosen:
        launch, actual = bench.run(case)
        check_outputs(case, launch, expected(case.spec, launch), actual)


class Dp4aBackend:
    """A backend with the kernels of compute capability 7.5."""

    name = "cuda"
    api = (2, 1)

    def devices(self) -> list[DeviceInfo]:
        return [replace(info, kernels=info.kernels - TENSOR_CORE_KERNELS) for info in device_infos()]

    def open(self, index: int) -> CudaDevice:
        return CudaDevice(by_index(device_infos(), index, "cuda"), tensor_cores=False)


class TestDp4a(BackendConformance):
    backend = Dp4aBackend
