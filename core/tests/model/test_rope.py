"""The rotary table against that of the transformers library, made by golden/make_reference_rope.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.model.rope import rope_table
from bitnet_core.plan.upload import upload
from bitnet_hal.reference.device import NumpyDevice

REFERENCE = Path(__file__).parents[1] / "golden" / "reference_rope.npz"
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "linear": {"rope_factor": 4.0},
    "yarn": {"rope_factor": 8.0, "rope_original_context": 1024},
    "llama3": {"rope_factor": 8.0, "rope_original_context": 1024},
}


@pytest.mark.parametrize("scaling", list(SCALINGS))
def test_table_equals_the_reference(tiny: Any, scaling: str) -> None:
    config = replace(
        tiny.BITNET, head_dim=64, rope_theta=10000.0, context=8192, rope_scaling=scaling, **SCALINGS[scaling]
    )
    with np.load(REFERENCE) as reference:
        positions, expected = reference["positions"], reference[scaling]
    table = rope_table(config, 8192)[positions]
    # one unit in the last place of a frequency, times the position
    tolerance = 1e-6 + 2.0**-23 * positions[:, None, None]
    assert (np.abs(table - expected) <= tolerance).all()


def test_freq_factors_divide_the_frequencies(tiny: Any) -> None:
    factors = np.linspace(1, 8, tiny.BITNET.head_dim // 2, dtype=np.float32)
    plain, stretched = rope_table(tiny.BITNET, 9), rope_table(tiny.BITNET, 9, factors)
    angle = np.arctan2(plain[1, :, 1], plain[1, :, 0]) / factors
    np.testing.assert_allclose(np.arctan2(stretched[1, :, 1], stretched[1, :, 0]), angle, rtol=1e-5)


@pytest.mark.parametrize("factors", [np.ones(7, np.float32), np.zeros(8, np.float32), np.full(8, np.nan, np.float32)])
def test_freq_factors_that_cannot_be(tiny: Any, factors: Any) -> None:
    source = tiny.TinySource(tiny.BITNET)
    vector = source.vector
    source.vector = lambda name: factors if name == "rope_freqs" else vector(name)
    source.has = lambda name: True
    with pytest.raises(ModelError, match="rope_freqs"):
        upload(source, NumpyDevice(), 16)
