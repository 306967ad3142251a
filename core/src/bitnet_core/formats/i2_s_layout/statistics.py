"""Statistical detection of the byte layout of an I2_S file, which does not store it; a wrong layout yields garbage
text.

Evidence, in this order: the caller's choice; layouts that the shapes rule out; statistics of the weights; if those
leave doubt, the self-test (self_test.py).

The statistics use a property of the right layout alone: column n of ffn_down, row n of ffn_up and entry n of
ffn_sub_norm belong to the same neuron. Dead neurons have a norm weight near zero and a column of zeros; and over all
neurons the shares of non-zero weights of that row and that column are correlated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bitnet_core.formats.ternary.codes import Bytes
from bitnet_core.formats.ternary.i2_s import COLUMN_OF_B
from bitnet_core.model.weights import BLOCK
from bitnet_core.options.loading import Layout

Basis = Literal["given", "only one fits", "dead neurons", "neuron statistics", "self-test", "assumed"]
Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]

_SAMPLE = 1024  # sampled rows of ffn_down and columns of ffn_up
_DEAD = 1e-6  # a norm weight this far below the median belongs to a dead neuron
_MIN_SCORE, _MIN_LEAD = 8.0, 4.0  # standard deviations without any relation, and above the second best

_ONES = np.uint64(0x0101010101010101)


@dataclass(frozen=True, slots=True)
class Decision:
    """A layout, the kind of evidence for it, and a description of the evidence."""

    layout: Layout
    basis: Basis
    evidence: str

    @property
    def in_doubt(self) -> bool:
        """True if a self-test should decide."""
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
    """Return the layout supported by the shapes and the statistics of some layers; A, in doubt, if there is no
    evidence."""
    layouts = tuple(fitting)
    if len(layouts) == 1:
        return Decision(layouts[0], "only one fits", "the other layouts cannot hold the matrices")
    scores: dict[Layout, list[float]] = {layout: [] for layout in layouts}
    dead: dict[Layout, list[float]] = {layout: [] for layout in layouts}
    for layer in layers:
        if layer.hidden % BLOCK or layer.ffn % BLOCK or layer.hidden % 4:
            continue
        densities = _densities(layer)
        for layout in layouts:
            rows, columns = densities[layout]
            scores[layout].append(_z_score(rows, columns))
            if layer.sub_norm is not None:
                size = np.abs(layer.sub_norm)
                middle = np.sort(size)[size.size // 2]  # np.median imports np.ma, which takes longer than this function
                dead[layout] += columns[size < _DEAD * middle].tolist()
    return _by_dead_neurons(dead) or _by_scores(scores) or Decision("A", "assumed", _doubt(scores))


def _by_dead_neurons(dead: Mapping[Layout, list[float]]) -> Decision | None:
    """Decide by dead neurons, whose columns are empty in the right layout only."""
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
        first, "neuron statistics", f"correlation of rows and columns of neurons, in sigma: {in_words(totals)}"
    )


def _totals(scores: Mapping[Layout, list[float]]) -> dict[Layout, float]:
    return {layout: float(np.sum(z) / np.sqrt(len(z))) for layout, z in scores.items() if z}


def _doubt(scores: Mapping[Layout, list[float]]) -> str:
    totals = _totals(scores)
    if not totals:
        return "no statistics for these shapes; nearly all published files have layout A"
    return f"the statistics do not decide (in sigma: {in_words(totals)}); nearly all published files have layout A"


def in_words(values: Mapping[Layout, float]) -> str:
    """Format a number for each layout: "A 1.5, B 2"."""
    return ", ".join(f"{layout} {value:.3g}" for layout, value in values.items())


def _z_score(a: Floats, b: Floats) -> float:
    """Return the correlation of two independent samples of n in units of its standard deviation, 1 / sqrt(n)."""
    if not a.std() or not b.std():
        return 0.0
    return float(np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std()) * np.sqrt(a.size))


def _densities(layer: Neurons) -> dict[Layout, tuple[Floats, Floats]]:
    """Return the non-zero shares of the rows of ffn_up and of the columns of ffn_down in each layout, f32[ffn] both,
    from the first columns and rows."""
    some, ffn = min(layer.hidden, _SAMPLE), layer.ffn
    down = layer.down[: some * ffn // 4]
    rows = _row_counts(layer.up.reshape(ffn, -1)[:, : some // 4]).sum(axis=0)
    blocks = _column_counts(down.reshape(some, -1)).reshape(4, -1, 32).swapaxes(0, 1).reshape(-1, BLOCK)
    rows_of_quads = _row_counts(layer.up.reshape(ffn // 4, -1)[:, :some]).T.reshape(-1)
    columns_of_quads = _column_counts(down.reshape(-1, ffn)).sum(axis=0)
    counts: dict[Layout, tuple[Counts, Counts]] = {
        "A": (rows, blocks.reshape(-1)),
        "B": (rows, blocks[:, np.argsort(COLUMN_OF_B)].reshape(-1)),
        "C": (rows_of_quads, columns_of_quads),
    }
    return {layout: (_share(up, some), _share(down, some)) for layout, (up, down) in counts.items()}


def _share(counts: Counts, of: int) -> Floats:
    return np.asarray(counts / of, np.float32)


def _planes(data: Bytes) -> Iterator[Words]:
    """Yield, for each bit pair of bytes u8[n, m], the high one first, words u64[n, m / 8] of bytes that are 1 if the
    code is not zero.

    Words of eight bytes are faster than bytes; m is a multiple of 8, as BLOCK / 4 is.
    """
    words = data.view(np.uint64)
    nonzero = ~words | words >> np.uint64(1)  # the code of zero is 01
    for shift in (6, 4, 2, 0):
        yield nonzero >> np.uint64(shift) & _ONES


def _column_counts(data: Bytes) -> Counts:
    """Count the non-zero codes of each column, u32[pair, m]; sums of 255 bytes fit in one."""
    counts = np.zeros((4, data.shape[1]), np.uint32)
    for total, plane in zip(counts, _planes(data), strict=True):
        for at in range(0, len(data), 255):
            total += plane[at : at + 255].view(np.uint8).sum(axis=0, dtype=np.uint8)
    return counts


def _row_counts(data: Bytes) -> Counts:
    """Count the non-zero codes of each row, u32[pair, n]; rows of up to 8 * 255 bytes are summed as words."""
    sums = np.stack([plane.sum(axis=1) for plane in _planes(data)])
    counts: Counts = sums.view(np.uint8).reshape(4, len(data), 8).sum(axis=2, dtype=np.uint32)
    return counts
