"""The conformance kit on the emulated GPU, once with tensor cores and once held to dp4a."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from bitnet_cuda import compile, tensor_tiles
from bitnet_cuda.describe import TENSOR_CORE_KERNELS, device_infos
from bitnet_cuda.device import CudaDevice
from bitnet_hal.device import DeviceInfo, Tuning
from bitnet_hal.driver.enumerate import by_index
from bitnet_hal.errors import GpuTimeoutError
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_hal.testing import BackendConformance
from bitnet_hal.testing.cases.case import expected
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.compare import check_outputs
from bitnet_hal.testing.workbench import Bench

sys.path.insert(0, str(Path(__file__).parent.parent))

from emulator import build

TILED = ("a128-b128-prompt", "a128-b256-prompt")
"""Cases whose rows make a tile for prompts."""

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
        """Each of them, whichever the plugin takes for so few rows."""
        monkeypatch.setattr(tensor_tiles, "WIDE", {size: tensor_tiles.WIDE[size]})
        run(bench, "matmul_ternary_block", *TILED)

    @pytest.mark.parametrize("size", tensor_tiles.STREAM)
    def test_tiles_that_one_block_takes_in_turns(
        self, bench: Bench, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Several of them, so that the warpgroups are at different ones."""
        tile = tensor_tiles.STREAM[size]
        alone = replace(tile, tile={**tile.tile, "SPLITS": 1})
        monkeypatch.setattr(tensor_tiles, "STREAM", {size: alone})
        run(bench, "matmul_ternary", "prompt-t150", "exact-t257")
        if size == (256, 128):
            run(bench, "matmul_ternary_glu", "relu2-t150", "silu-t150")

    @pytest.mark.parametrize("rows", [1, 1 << 20])
    def test_warpgroups_of_attention_share_rows_or_positions(
        self, bench: Bench, rows: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tile = tensor_tiles.attention_tile
        monkeypatch.setattr(
            tensor_tiles, "attention_tile", lambda params, **wgmma: tile({**params, "rows": rows}, **wgmma)
        )
        run(bench, "attention", "prompt-d128", "prompts-d128")


def run(bench: Bench, kernel: str, *labels: str) -> None:
    """The kernel's cases whose labels begin so."""
    chosen = [case for case in cases_of(kernel) if case.label.startswith(labels)]
    assert len(chosen) >= len(labels)
    for case in chosen:
        launch, actual = bench.run(case)
        check_outputs(case, launch, expected(case.spec, launch), actual)


class Dp4aBackend:
    """The path of compute capability 7.5."""

    name = "cuda"
    api = (2, 1)

    def devices(self) -> list[DeviceInfo]:
        return [replace(info, kernels=info.kernels - TENSOR_CORE_KERNELS) for info in device_infos()]

    def open(self, index: int) -> CudaDevice:
        return CudaDevice(by_index(device_infos(), index, "cuda"), tensor_cores=False)


class TestDp4a(BackendConformance):
    backend = Dp4aBackend
