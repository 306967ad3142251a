"""Compare activation scales per 32 and per 128 columns: the divergence of an engine's logits from float activations.

Two tables: the golden models against transformers' logits, and random models whose norms magnify a few columns against
the float64 model, with rotated weights and without. Divergence: KL(float || int8) in nats, the mean over tokens.

    python core/tests/golden/activation_scales.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from bitnet_core.engine.engine import Engine
from bitnet_core.formats.open import open_model
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.testing.drawn import DrawnSource
from bitnet_hal.reference.device import NumpyDevice
from float64_model import FloatModel
from float_model import divergence

GOLDEN = Path(__file__).parent
MODELS = {
    "bonsai2/rotated-PTQ1_0.gguf": "bonsai2/reference.npz",
    "bonsai2/rotated-PQ2_0-MTP-Q8_0.gguf": "bonsai2/mtp_reference.npz",
    "qwen3/qwen3-untied/Q2_0-g128.gguf": "qwen3/qwen3-untied/reference.npz",
    "qwen3/qwen3-tied/Q2_0-g128.gguf": "qwen3/qwen3-tied/reference.npz",
}
OUTLIERS = ((0, 1), (8, 20), (8, 60), (2, 300))
"""Numbers of columns and the factors of their norm weights."""
SEEDS = 4
SIZES: tuple[Literal[32, 128], ...] = (32, 128)


class Outliers(DrawnSource):
    """A tiny random Bonsai 2 in which the norms before products multiply `columns` columns by `factor`."""

    def __init__(self, seed: int, columns: int, factor: float, *, rotated: bool) -> None:
        super().__init__(seed, "bonsai2-tiny")
        self._columns, self._factor = columns, factor
        if not rotated:
            assert self.config.delta is not None
            delta = replace(self.config.delta, regrouped=False)
            self.config = replace(self.config, hadamard=0, delta=delta)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Return a vector; norms before products have the outliers."""
        values = super().vector(name)
        if name.endswith(("attn_norm", "ffn_norm")):
            chosen = np.random.default_rng([self._seed, len(name)]).choice(len(values), self._columns, replace=False)
            values[chosen] *= np.float32(self._factor)
        return values


def logits(source: ModelSource, size: Literal[32, 128], tokens: Any) -> npt.NDArray[np.float32]:
    """Return an engine's logits f32[T, V] with a scale for `size` columns and an f32 cache."""
    engine = Engine(source, NumpyDevice(), EngineOptions("f32", activation_group_size=size, max_sequences=1))
    try:
        return engine.logits(tokens)
    finally:
        engine.close()


def compared(wanted: npt.NDArray[Any], found: npt.NDArray[Any]) -> tuple[float, float]:
    """Return the mean divergence and the share of tokens with the same likeliest one."""
    same = (found.argmax(axis=1) == wanted.argmax(axis=1)).mean()
    return float(divergence(wanted, found).mean()), float(same)


def line(name: str, figures: list[tuple[float, float]]) -> None:
    """Print the figures of both sizes."""
    print(f"{name:42}", *(f"{mean:.5f} {same:6.1%}" for mean, same in figures), sep="  ")


def main() -> None:
    """Print both tables."""
    for file, reference in MODELS.items():
        source = open_model(GOLDEN / file)
        with np.load(GOLDEN / reference) as archive:
            for run in "ab":
                tokens, wanted = archive[f"tokens_{run}"], archive[f"logits_{run}"]
                found = [logits(source, size, tokens)[int(archive[f"first_{run}"]) :] for size in SIZES]
                line(f"{file} {run}", [compared(wanted, rows) for rows in found])
        source.close()
    tokens = np.random.default_rng(5).integers(0, 300, 60)
    for columns, factor in OUTLIERS:
        for rotated in (True, False):
            figures = []
            for seed in range(SEEDS):
                source = Outliers(seed, columns, factor, rotated=rotated)
                wanted = FloatModel(source).logits(tokens)
                figures.append([compared(wanted, logits(source, size, tokens)) for size in SIZES])
            means = [tuple(pair) for pair in np.mean(figures, axis=0).tolist()]
            line(f"{columns} columns x {factor}, {'rotated' if rotated else 'not rotated'}", means)


if __name__ == "__main__":
    main()
