"""The multipliers of MiniCPM models (arch `minicpm`: BitCPM4), folded into what a plain transformer has.

    x = embedding E[token];  x += residual branch(norm(x));  logits = head(norm(x)) / logit

With x' = x / embedding the same logits come from x' = E[token] and x' += (residual / embedding) branch(norm'(x')),
where norm' has eps / embedding^2: a norm does not see the scale of its input but for eps. So weight scales of the
matrices that end a branch, the last norm's weights and eps change, and no table does. Keys and formula: llama.cpp,
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
"""Matrices whose product is added to the row."""
_KEYS = ("embedding_scale", "residual_scale", "logit_scale")
_MOST = 1e4


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Those of a file; 1 where the model has none."""

    embedding: float = 1.0
    residual: float = 1.0
    logit: float = 1.0

    def config(self, config: ModelConfig) -> ModelConfig:
        """The model that is left."""
        return replace(config, norm_eps=config.norm_eps / self.embedding**2)

    def matrix(self, name: str, weight: TernaryWeight) -> TernaryWeight:
        """The named matrix of a layer, or a table."""
        factor = np.float32(self.residual / self.embedding)
        return replace(weight, scales=weight.scales * factor) if name.endswith(_ENDS) and factor != 1 else weight

    def vector(self, name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The named norm's weights."""
        return values / np.float32(self.logit) if name == "output_norm" and self.logit != 1 else values


def read_multipliers(path: Path, keys: MetadataReader, arch: str) -> Multipliers:
    """Of a file's keys. ModelError where one is missing, as what programs take instead differs, or makes no sense."""
    if arch != ARCHITECTURE:
        return Multipliers()
    found = []
    for name in _KEYS:
        if not keys.has(name):
            raise ModelError(
                f"{path}: has no key {arch}.{name}, and programs disagree on what to take instead; get a file that "
                "a recent converter wrote"
            )
        value = keys.real(name)
        if not 1 / _MOST < value < _MOST:
            raise ModelError(f"{path}: {arch}.{name} is {value:g}, which is no multiplier of such a model")
        found.append(value)
    return Multipliers(*found)
