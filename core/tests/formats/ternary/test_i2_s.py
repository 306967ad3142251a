from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary import i2_s
from bitnet_core.formats.ternary.codes import first_illegal, pack, unpack
from bitnet_core.model.weights import TernaryWeight

Golden = Mapping[str, Any]


def values(weight: TernaryWeight) -> np.ndarray:
    return unpack(weight.codes, weight.columns).astype(np.int8) - 1


@pytest.mark.parametrize(("layout", "key"), [("A", "i2s_bytes"), ("B", "i2s_arm_bytes"), ("C", "i2s_rowx4_bytes")])
def test_golden_layouts(golden: Golden, layout: i2_s.Layout, key: str) -> None:
    weight = i2_s.decode(golden[key], 16, 256, layout)
    assert (values(weight) == golden["i2s_values"]).all()
    assert weight.scales == golden["i2s_scale"]
    assert bytes(i2_s.encode(weight)) == bytes(golden["i2s_bytes"])


def test_golden_of_a_quantized_float_matrix(golden: Golden) -> None:
    weight = i2_s.decode(golden["i2s_absmax_bytes"], 4, 128)
    assert (values(weight) == golden["i2s_absmax_codes"]).all()
    assert weight.scales == golden["i2s_absmax_scale"]


def test_golden_blocks_that_run_across_rows(golden: Golden) -> None:
    weight = i2_s.decode(golden["i2s_straddle_bytes"], 4, 160)
    assert (values(weight) == golden["i2s_straddle_values"]).all()
    assert (unpack(weight.codes, 256)[:, 160:] == 1).all()
    assert bytes(i2_s.encode(weight)) == bytes(golden["i2s_straddle_bytes"])


@pytest.mark.parametrize("layout", ["A", "B", "C"])
def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch, layout: i2_s.Layout) -> None:
    data = np.random.default_rng(1).integers(0, 85, 512 * 192 // 4 + 32).astype(np.uint8) & 0xAA  # codes 0 and 2
    whole = i2_s.decode(data, 512, 192, layout)
    encoded = i2_s.encode(whole)
    monkeypatch.setattr("bitnet_core.formats.ternary.codes.CHUNK", 1000)
    parts = i2_s.decode(data, 512, 192, layout)
    assert (parts.codes == whole.codes).all()
    assert (i2_s.encode(parts) == encoded).all()


def test_layout_a_is_a_view() -> None:
    data = np.zeros(128 * 128 // 4 + 32, np.uint8)
    assert np.shares_memory(i2_s.decode(data, 128, 128).codes, data)


@pytest.mark.parametrize("at", [0, 7, 8, 4000, 4095, 4099])
def test_code_3_is_refused(at: int) -> None:
    data = np.zeros(4100 + 28, np.uint8)
    assert first_illegal(data[:4100]) == -1
    data[at] = 0b00110000
    assert first_illegal(data[:4100]) == at
    data = np.zeros(128 * 128 // 4 + 32, np.uint8)
    data[at % 4096] = 3
    with pytest.raises(ModelError, match=f"byte {at % 4096} "):
        i2_s.decode(data, 128, 128)


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ModelError, match="layout C cannot hold"):
        i2_s.decode(np.zeros(6 * 128 // 4 + 32, np.uint8), 6, 128, "C")
    with pytest.raises(ModelError, match="one scale per matrix"):
        i2_s.encode(TernaryWeight(2, 128, pack(np.ones((2, 128), np.uint8)), np.ones(2, np.float32), "row"))
