"""Tiny models with random weights from a seed: group scales, QK-norm and ternary tables; no two matrices are equal."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from bitnet_core.formats.names import SIGNS
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.ternary.codes import pack
from bitnet_core.model.weights import BLOCK, DenseWeight, TernaryWeight


class DrawnSource(SyntheticSource):
    """A model of the shape "bonsai-tiny" (0.2 MB) or another; its weights depend on the seed and each tensor's name.

    A third of the weights is zero, group scales vary by 0.5 to 1.5, norm weights are 0.5 to 1.5, and the head is wide
    enough that the largest logit stands out.
    """

    def __init__(self, seed: int = 0, shape: str = "bonsai-tiny") -> None:
        super().__init__(shape)
        self._seed = seed

    def _draw(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(name.encode())])

    def ternary(self, name: str) -> TernaryWeight:
        """Return a matrix of equally many codes 0, 1 and 2."""
        rows, columns = self._ternaries[name]
        draw = self._draw(name)
        codes = draw.integers(0, 3, (rows, columns), np.uint8)
        scales = draw.uniform(0.5, 1.5, (rows, columns // BLOCK)).astype(np.float32) * np.float32(columns**-0.5)
        return TernaryWeight(rows, columns, pack(codes), scales, "block", BLOCK)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Return values around 1: signs of a rotation, or negative rates of delta nets, if the name says so."""
        draw = self._draw(name)
        size = self._norms[name]
        if name.startswith(SIGNS):
            return draw.choice([-1.0, 1.0], size).astype(np.float32)
        values = draw.uniform(0.5, 1.5, size).astype(np.float32)
        return -values if name.endswith("ssm_a") else values

    def dense(self, name: str) -> DenseWeight:
        """Return a float matrix of a delta net whose products keep the magnitude of their inputs."""
        rows, columns = self._floats[name]
        halves = (self._draw(name).standard_normal((rows, columns)) * columns**-0.5).astype("<f2")
        return DenseWeight("f16", rows, columns, halves.view(np.uint8))
