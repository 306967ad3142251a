"""Write block_types.npz: blocks of each type that an embedding may have, and their values by PyPI `gguf` 0.19.0.

python core/tests/formats/make_block_types.py    (needs pip install gguf)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from bitnet_core.formats.gguf.types import BY_NAME

TYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K"),
    *("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4"),
)
SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "MXFP4": ()}
"""Offsets of the f16 numbers of a block; 0 if not listed."""


def blocks_of(name: str, count: int, seed: int) -> np.ndarray:
    """Return random blocks with scales near 0.01."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (count, BY_NAME[name].block_bytes)).astype(np.uint8)
    for at in SCALES.get(name, (0,)):
        blocks[:, at : at + 2] = rng.uniform(0.005, 0.02, (count, 1)).astype("<f2").view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(115, 130, count)
    return blocks


def main() -> None:
    from gguf import GGMLQuantizationType, quants

    arrays = {}
    for seed, name in enumerate(TYPES):
        blocks = blocks_of(name, 2 if BY_NAME[name].elements == 256 else 8, seed)
        arrays[f"{name}_bytes"] = blocks
        arrays[f"{name}_values"] = quants.dequantize(blocks, GGMLQuantizationType[name])
    np.savez_compressed(Path(__file__).parent / "block_types.npz", **arrays)


if __name__ == "__main__":
    main()
