"""Figures of a benchmark."""

from __future__ import annotations

from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.measure.benchmark import bytes_per_token


def test_bytes_per_token_of_2b4t() -> None:
    config = SHAPES["2b4t"]
    head = config.vocab * config.hidden * 2
    # 30 layers of 2 * 2560^2 + 2 * 640 * 2560 + 3 * 6912 * 2560 weights, four in a byte
    ternary = 30 * (2 * 2560**2 + 2 * 640 * 2560 + 3 * 6912 * 2560) // 4
    assert bytes_per_token(config, head, "f16", 0) == ternary + head
    assert bytes_per_token(config, head, "f16", 10) == ternary + head + 30 * 10 * 2 * 5 * 128 * 2
