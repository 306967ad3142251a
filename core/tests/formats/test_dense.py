from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats import dense

Golden = Mapping[str, Any]


@pytest.mark.parametrize(("dtype", "key"), [("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q6_K", "q6k")])
def test_golden_blocks(golden: Golden, dtype: Any, key: str) -> None:
    assert (dense.decode(golden[f"{key}_bytes"], dtype, 512) == golden[f"{key}_dequant"]).all()


def test_plain_floats() -> None:
    x = np.array([[1.5, -2.25, 3e4, 0]], "<f4")
    assert (dense.decode(x.view(np.uint8), "f32", 4) == x).all()
    assert (dense.decode(x.astype("<f2").view(np.uint8), "f16", 4) == x).all()
    upper = (x.view("<u4") >> 16).astype("<u2")
    assert (dense.decode(upper.view(np.uint8), "bf16", 4) == [[1.5, -2.25, 29952, 0]]).all()


def test_kernel_types_stay_as_they_are_and_q4_0_becomes_f16(golden: Golden) -> None:
    kept = dense.from_file(golden["q8_0_bytes"].reshape(-1), "Q8_0", 2, 512)
    assert kept.dtype == "q8_0"
    assert (kept.data == golden["q8_0_bytes"]).all()
    half = dense.from_file(golden["q4_0_bytes"].reshape(-1), "Q4_0", 2, 512)
    assert half.dtype == "f16"
    assert (half.data.view("<f2") == golden["q4_0_dequant"].astype("<f2")).all()
    with pytest.raises(ModelError, match="range of f16"):
        dense.from_file(np.full(36, 0x7B, np.uint8), "Q4_0", 1, 64)
    with pytest.raises(ModelError, match="TQ1_0"):
        dense.from_file(np.zeros(54, np.uint8), "TQ1_0", 1, 256)
