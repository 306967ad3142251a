"""The multipliers of MiniCPM models (arch `minicpm`: BitCPM4), folded into the weights of a plain transformer.

    x = embedding E[token];  x += residual branch(norm(x));  logits = head(norm(x)) / logit

With x' = x / embedding the same logits follow from x' = E[token] and x' += (residual / embedding) branch(norm'(x')),
with eps / embedding^2 in norm': apart from eps a norm does not depend on the scale of its input. So the scales of the
matrices that end a branch, the last norm's weights and eps change, and the tables stay. Keys and formula: llama.cpp,
src/models/minicpm.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.keys import MetadataReader
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.weights import TernaryWeight

ARCHITECTURE = "minicpm"
_ENDS = ("attn_output", "ffn_down")
"""Matrices whose product is added to the residual."""
_KEYS = ("embedding_scale", "residual_scale", "logit_scale")
_MOST = 1e4


@dataclass(frozen=True, slots=True)
class Multipliers:
    """The multipliers of a file; 1 if the model has none."""

    embedding: float = 1.0
    residual: float = 1.0
    logit: float = 1.0

    def config(self, config: ModelConfig) -> ModelConfig:
        """Return the configuration of the equivalent model without multipliers."""
        return replace(config, norm_eps=config.norm_eps / self.embedding**2)

    def matrix(self, name: str, weight: TernaryWeight) -> TernaryWeight:
        """Return a matrix or table with its multiplier folded into the scales."""
        factor = np.float32(self.residual / self.embedding)
        return replace(weight, scales=weight.scales * factor) if name.endswith(_ENDS) and factor != 1 else weight

    def vector(self, name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return a norm's weights with their multiplier folded in."""
        return values / np.float32(self.logit) if name == "output_norm" and self.logit != 1 else values


def read_multipliers(path: Path, keys: MetadataReader, arch: str) -> Multipliers:
    """Read the multipliers from a file's keys.

    Raises ModelError if a key is missing (programs disagree on its default) or out of range.
    """
    if arch != ARCHITECTURE:
        return Multipliers()
    found = []
    for name in _KEYS:
        if not keys.has(name):
            raise ModelError(
                f"{path}: has no key {arch}.{name}, and programs disagree on its default; get a file that "
                "a recent converter wrote"
            )
        value = keys.real(name)
        if not 1 / _MOST < value < _MOST:
            raise ModelError(f"{path}: {arch}.{name} is {value:g}, which is not a valid multiplier")
        found.append(value)
    return Multipliers(*found)
