"""Tiny models with scales of blocks, QK-norm and ternary tables, drawn from a seed: no two matrices are alike."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from bitnet_core.formats.names import SIGNS
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.ternary.codes import pack
from bitnet_core.model.weights import BLOCK, DenseWeight, TernaryWeight


class DrawnSource(SyntheticSource):
    """The shape "bonsai-tiny" (0.2 MB) or another with weights that depend on the seed and on each tensor's name.

    A third of the weights is zero, blocks have scales of 0.5 to 1.5 times the usual one, norm weights are 0.5 to 1.5,
    and the head is wide enough for the likeliest token to stand out.
    """

    def __init__(self, seed: int = 0, shape: str = "bonsai-tiny") -> None:
        super().__init__(shape)
        self._seed = seed

    def _draw(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(name.encode())])

    def ternary(self, name: str) -> TernaryWeight:
        """Equally many codes 0, 1 and 2."""
        rows, columns = self._ternaries[name]
        draw = self._draw(name)
        codes = draw.integers(0, 3, (rows, columns), np.uint8)
        scales = draw.uniform(0.5, 1.5, (rows, columns // BLOCK)).astype(np.float32) * np.float32(columns**-0.5)
        return TernaryWeight(rows, columns, pack(codes), scales, "block", BLOCK)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Around 1; the signs of a rotation, and the rates of delta nets, which are below 0."""
        draw, size = self._draw(name), self._norms[name]
        if name.startswith(SIGNS):
            return draw.choice([-1.0, 1.0], size).astype(np.float32)
        values = draw.uniform(0.5, 1.5, size).astype(np.float32)
        return -values if name.endswith("ssm_a") else values

    def dense(self, name: str) -> DenseWeight:
        """What a delta net has of floats, each sum of which has about its inputs' size."""
        rows, columns = self._floats[name]
        halves = (self._draw(name).standard_normal((rows, columns)) * columns**-0.5).astype("<f2")
        return DenseWeight("f16", rows, columns, halves.view(np.uint8))
