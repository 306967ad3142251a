"""argmax_advance and top_k."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bitnet_core.kernels.catalogue import KV_BLOCK
from bitnet_core.testing.cases.case import Array, Arrays, Case, Launch, Rng, blank
from bitnet_core.testing.cases.data import block_tables, normal, step_rows

RING = 6


def _argmax(rng: Rng, rows: int, vocab: int, edit: Callable[[Arrays], None] | None = None) -> Launch:
    total = rows + 2
    max_blocks = 4
    tables = block_tables(rng, [max_blocks * KV_BLOCK] * total, max_blocks, 4 * total)
    positions = rng.integers(0, 200, total)
    positions[positions % KV_BLOCK == KV_BLOCK - 1] -= 1
    sequences = rng.permutation(total)
    slots = tables[sequences, positions // KV_BLOCK] * KV_BLOCK + positions % KV_BLOCK
    history = np.full((total, RING + 1), -7)
    history[:, 0] = rng.integers(0, RING, total)
    arrays: Arrays = {
        "logits": normal(rng, rows, vocab),
        "index": rng.permutation(total)[:rows],
        "tables": tables,
        "step": step_rows(rng.integers(0, vocab, total), positions, slots, sequences),
        "history": history,
    }
    if edit:
        edit(arrays)
    return Launch({"rows": rows, "vocab": vocab, "max_blocks": max_blocks, "ring": RING}, arrays)


def _ties(a: Arrays) -> None:
    """The largest logit stands in three places far apart; the lowest index wins."""
    vocab = a["logits"].shape[1]
    for row, first in enumerate((0, vocab // 3, vocab - 3)):
        a["logits"][row, [first, first + 1, vocab - 1]] = 9


def _equal(a: Arrays) -> None:
    a["logits"][:] = -3.5
    a["logits"][1] = -np.inf


def _nan(a: Arrays) -> None:
    a["logits"][0, -1] = np.nan
    a["logits"][2, 0] = np.nan
    a["logits"][1, 7] = np.inf


def _unused(a: Arrays) -> None:
    a["step"][a["index"][::2], 1:3] = -1


def _full_history(a: Arrays) -> None:
    """At the ring's end, just past it, and far past it: nothing may be written outside the row."""
    a["history"][:, 0] = np.resize([RING - 1, RING, 40], len(a["history"]))


def _block_ends(a: Arrays) -> None:
    """The next position opens another block, one that the table lacks, or one past the table."""
    step, tables = a["step"], a["tables"]
    for i, row in enumerate(a["index"]):
        position = (KV_BLOCK - 1, 2 * KV_BLOCK - 1, 4 * KV_BLOCK - 1)[i % 3]
        step[row, 1] = position
        step[row, 2] = tables[step[row, 3], position // KV_BLOCK] * KV_BLOCK + KV_BLOCK - 1
        if i % 3 == 1:
            tables[step[row, 3], 2] = -1


def _top_k(rng: Rng, rows: int, vocab: int, k: int, edit: Callable[[Array], None] | None = None) -> Launch:
    logits = normal(rng, rows, vocab)
    if edit:
        edit(logits)
    return Launch(
        {"rows": rows, "vocab": vocab, "k": k},
        {"logits": logits, "ids": blank(rows * k, "i32"), "values": blank(rows * k, "f32")},
    )


def _few_values(logits: Array) -> None:
    np.rint(logits, out=logits)
    logits += 0.5  # no zero, whose sign would make two equal values differ


def _some_nan(logits: Array) -> None:
    logits[0, [3, 90]] = np.nan
    logits[1, 17] = np.inf
    logits[1, 18:] = -np.inf


def _crowded(logits: Array) -> None:
    """Equal values at regular distances: many candidates for the same places."""
    logits[:] = -(np.arange(logits.shape[1]) % 1024)


def cases() -> Iterator[Case]:
    """Vocabularies around a workgroup and a real one, ties, NaN, the ends of rings, blocks and tables."""
    name = "argmax_advance"
    for rows, vocab in ((1, 1), (2, 255), (7, 256), (8, 257), (33, 1000), (1, 128256)):
        yield Case(name, f"l{rows}-v{vocab}", _argmax, (rows, vocab))
    edits = {
        "ties": _ties,
        "equal-logits": _equal,
        "nan": _nan,
        "unused-rows": _unused,
        "full-history": _full_history,
        "block-ends": _block_ends,
    }
    for label, edit in edits.items():
        yield Case(name, label, _argmax, (6, 500, edit))
    name = "top_k"
    for rows, vocab, k in ((1, 1, 1), (2, 255, 40), (7, 257, 8), (3, 256, 256), (1, 128256, 64)):
        yield Case(name, f"l{rows}-v{vocab}-k{k}", _top_k, (rows, vocab, k))
    yield Case(name, "ties", _top_k, (3, 300, 50, _few_values))
    yield Case(name, "crowded", _top_k, (1, 20000, 200, _crowded))
    yield Case(name, "nan-inf", _top_k, (3, 300, 20, _some_nan))
