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


def q4_k_value(block: np.ndarray, i: int) -> float:
    """Return element i of a Q4_K block, from its definition."""
    d, dmin = block[:4].view("<f2").astype(np.float64)
    scales, quants = block[4:16].astype(int), block[16:].astype(int)
    j = i // 32
    if j < 4:
        scale, minimum = scales[j] & 63, scales[j + 4] & 63
    else:
        scale = scales[j + 4] & 15 | scales[j - 4] >> 6 << 4
        minimum = scales[j + 4] >> 4 | scales[j] >> 6 << 4
    byte = quants[i // 64 * 32 + i % 32]
    return float(d * scale * (byte >> 4 if i % 64 >= 32 else byte & 15) - dmin * minimum)


def test_q4_k_and_iq4_nl_become_f16() -> None:
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (6, 144)).astype(np.uint8)
    blocks[:, :4] = np.array([0.01, 0.02], "<f2").view(np.uint8)
    weight = dense.from_file(blocks.reshape(-1), "Q4_K", 3, 512)
    expected = np.array([[q4_k_value(block, i) for i in range(256)] for block in blocks])
    assert weight.dtype == "f16"
    np.testing.assert_allclose(weight.data.view("<f2").reshape(6, 256), expected, rtol=1e-3, atol=1e-4)
    nibbles = np.arange(16, dtype=np.uint8)
    block = np.concatenate([np.array([0.5], "<f2").view(np.uint8), nibbles << 4 | nibbles])
    table = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
    half = dense.from_file(np.tile(block, 2), "IQ4_NL", 1, 64)
    assert half.data.view("<f2").reshape(4, 16).tolist() == [[0.5 * value for value in table]] * 4
