"""Which of its three byte layouts an I2_S file has. Nothing in the file says it, and a wrong guess gives garbage text.

Evidence, in this order: the caller's word; layouts that the shapes rule out; statistics of the weights; where they
leave doubt, the self-test (self_test.py).

The statistics use what only the right layout shows: column n of ffn_down, row n of ffn_up and entry n of ffn_sub_norm
belong to the same neuron. Dead neurons have a norm weight near zero and a column of zeros; and over all neurons the
shares of non-zero weights of that row and that column go together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bitnet_core.formats.ternary.codes import Bytes
from bitnet_core.formats.ternary.i2_s import COLUMN_OF_B, Layout
from bitnet_core.model.weights import BLOCK

Basis = Literal["given", "only one fits", "dead neurons", "neuron statistics", "self-test", "assumed"]
Floats = npt.NDArray[np.float32]

_SAMPLE = 1024  # rows of ffn_down and columns of ffn_up that are looked at
_DEAD = 1e-6  # a norm weight this far below the median belongs to a dead neuron
_MIN_SCORE, _MIN_LEAD = 8.0, 4.0  # standard deviations under "no relation", and above the second best

_NONZERO = np.array([sum((byte >> s & 3) != 1 for s in (0, 2, 4, 6)) for byte in range(256)], np.uint8)


@dataclass(frozen=True, slots=True)
class Decision:
    """A layout, what it rests on, and the evidence in words."""

    layout: Layout
    basis: Basis
    evidence: str

    @property
    def in_doubt(self) -> bool:
        """Whether a self-test should settle it."""
        return self.basis == "assumed"


@dataclass(frozen=True, slots=True)
class Neurons:
    """One layer: bytes of ffn_up (ffn x hidden) and ffn_down (hidden x ffn) without scales, and ffn_sub_norm if any."""

    hidden: int
    ffn: int
    up: Bytes
    down: Bytes
    sub_norm: Floats | None


def decide(fitting: Iterable[Layout], layers: Iterable[Neurons]) -> Decision:
    """The layout that the shapes and the statistics of some layers speak for; A, in doubt, if they do not speak."""
    layouts = tuple(fitting)
    if len(layouts) == 1:
        return Decision(layouts[0], "only one fits", "the other layouts cannot hold the matrices")
    scores: dict[Layout, list[float]] = {layout: [] for layout in layouts}
    dead: dict[Layout, list[float]] = {layout: [] for layout in layouts}
    for layer in layers:
        if layer.hidden % BLOCK or layer.ffn % BLOCK or layer.hidden % 4:
            continue
        for layout in layouts:
            density = _column_density(layer, layout)
            scores[layout].append(_z_score(_row_density(layer, layout), density))
            if layer.sub_norm is not None:
                size = np.abs(layer.sub_norm)
                dead[layout] += density[size < _DEAD * np.median(size)].tolist()
    return _by_dead_neurons(dead) or _by_scores(scores) or Decision("A", "assumed", _doubt(scores))


def _by_dead_neurons(dead: Mapping[Layout, list[float]]) -> Decision | None:
    """Columns of dead neurons are empty under the right layout only."""
    shares = {layout: float(np.mean(values)) for layout, values in dead.items() if len(values) >= 2}
    empty = [layout for layout, share in shares.items() if share < 0.02]
    if len(empty) != 1 or any(share < 0.2 for layout, share in shares.items() if layout != empty[0]):
        return None
    text = f"non-zero share of the columns of dead neurons: {in_words(shares)}"
    return Decision(empty[0], "dead neurons", text)


def _by_scores(scores: Mapping[Layout, list[float]]) -> Decision | None:
    totals = _totals(scores)
    if not totals:
        return None
    first, second = sorted(totals, key=lambda layout: -abs(totals[layout]))[:2]
    if abs(totals[first]) < _MIN_SCORE or abs(totals[first]) - abs(totals[second]) < _MIN_LEAD:
        return None
    return Decision(
        first, "neuron statistics", f"relation of rows and columns of neurons, in sigma: {in_words(totals)}"
    )


def _totals(scores: Mapping[Layout, list[float]]) -> dict[Layout, float]:
    return {layout: float(np.sum(z) / np.sqrt(len(z))) for layout, z in scores.items() if z}


def _doubt(scores: Mapping[Layout, list[float]]) -> str:
    totals = _totals(scores)
    if not totals:
        return "no statistics for these shapes; layout A is that of nearly all published files"
    return (
        f"the statistics do not decide (in sigma: {in_words(totals)}); layout A is that of nearly all published files"
    )


def in_words(values: Mapping[Layout, float]) -> str:
    """ "A 1.5, B 2": a number for each layout."""
    return ", ".join(f"{layout} {value:.3g}" for layout, value in values.items())


def _z_score(a: Floats, b: Floats) -> float:
    """Correlation of two independent samples of n in units of its standard deviation, 1 / sqrt(n)."""
    if not a.std() or not b.std():
        return 0.0
    return float(np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std()) * np.sqrt(a.size))


def _pairs(data: Bytes) -> npt.NDArray[np.bool_]:
    """Bytes u8[n, m] -> whether the code in each bit pair is not zero, bool[4, n, m], high pair first."""
    codes: Bytes = np.stack([(data >> np.uint8(shift)) & np.uint8(3) for shift in (6, 4, 2, 0)])
    return np.not_equal(codes, 1)


def _column_density(layer: Neurons, layout: Layout) -> Floats:
    """Non-zero share of each column of ffn_down, f32[ffn], from its first rows."""
    rows = min(layer.hidden, _SAMPLE)
    if layout == "C":
        quads = layer.down[: rows * layer.ffn // 4].reshape(rows // 4, layer.ffn)
        return np.asarray(_NONZERO[quads].mean(axis=0), np.float32) / np.float32(4)
    packed = layer.down[: rows * layer.ffn // 4].reshape(rows, layer.ffn // 4)
    shares = np.asarray(_pairs(packed).mean(axis=1), np.float32)  # [pair, byte of the row]
    read = shares.reshape(4, -1, 32).swapaxes(0, 1).reshape(-1, BLOCK)  # layout A's order
    if layout == "B":
        read = read[:, np.argsort(COLUMN_OF_B)]
    return read.reshape(-1)


def _row_density(layer: Neurons, layout: Layout) -> Floats:
    """Non-zero share of each row of ffn_up, f32[ffn], from its first columns."""
    columns = min(layer.hidden, _SAMPLE)
    if layout == "C":
        quads = layer.up.reshape(layer.ffn // 4, layer.hidden)[:, :columns]
        return np.asarray(_pairs(quads).mean(axis=2), np.float32).T.reshape(-1)
    packed = layer.up.reshape(layer.ffn, layer.hidden // 4)[:, : columns // 4]
    return np.asarray(_NONZERO[packed].mean(axis=1), np.float32) / np.float32(4)
