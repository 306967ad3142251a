"""Cases of argmax_advance and top_k."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.kernels.spec import ParamDict
from bitnet_hal.testing.cases.case import BATCH_ROWS, Array, Arrays, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import block_tables, mask_bits, normal, step_rows

RING = 6


def _argmax(
    rng: Rng, rows: int, vocab: int, edit: Callable[[Arrays], None] | None = None, stride: int = 0, masked: int = 0
) -> CaseLaunch:
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
        "logits": _logits(rng, rows, vocab, stride),
        "mask": _mask(rng, rows, vocab) if masked else np.zeros(1),
        "index": rng.permutation(total)[:rows],
        "tables": tables,
        "step": step_rows(rng.integers(0, vocab, total), positions, slots, sequences),
        "history": history,
    }
    if edit:
        edit(arrays)
    params: ParamDict = {"rows": rows, "vocab": vocab, "stride": stride or vocab}
    return CaseLaunch(params | {"max_blocks": max_blocks, "ring": RING}, arrays, {"MASK": masked})


def _logits(rng: Rng, rows: int, vocab: int, stride: int) -> Array:
    """Return [rows, stride]; the columns past `vocab` exceed all others, and are NaN in every other row."""
    logits = normal(rng, rows, stride or vocab)
    logits[:, vocab:] = 99
    logits[::2, vocab:] = np.nan
    return logits


def _mask(rng: Rng, rows: int, vocab: int) -> Array:
    """Allow about a third of the tokens, at least one in each row."""
    allowed = rng.random((rows, vocab)) < 0.3
    allowed[:, rng.integers(vocab)] = True
    return mask_bits(allowed)


def _forbidden(a: Arrays) -> None:
    """Allow nothing in row 0; forbid the NaN and the largest logit of row 1; allow a NaN in row 2."""
    a["mask"][0] = 0
    a["logits"][1, 40] = np.nan
    a["logits"][1, 50] = np.inf
    a["logits"][2, 60] = np.nan
    a["mask"][1, 1] &= ~np.int32(1 << 8 | 1 << 18)
    a["mask"][2, 1] |= np.int32(1 << 28)


def _first_and_last(a: Arrays) -> None:
    """Allow one token in each row: the first, the last, one at the end of a word; their logits are the smallest."""
    vocab = a["logits"].shape[1]
    a["mask"][:] = 0
    for row, token in enumerate((0, vocab - 1, 31)):
        a["mask"][row, token // 32] = np.array(1 << token % 32, np.uint32).view(np.int32)
        a["logits"][row, token] = -1e30


def _ties(a: Arrays) -> None:
    """Put the largest logit in three distant places; the lowest index must win."""
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
    """Set the counts at the ring's end, just past it, and far past it: nothing may be written outside the row."""
    a["history"][:, 0] = np.resize([RING - 1, RING, 40], len(a["history"]))


def _block_ends(a: Arrays) -> None:
    """Make the next position open another block, one that the table lacks, or one past the table."""
    step = a["step"]
    tables = a["tables"]
    for i, row in enumerate(a["index"]):
        position = (KV_BLOCK - 1, 2 * KV_BLOCK - 1, 4 * KV_BLOCK - 1)[i % 3]
        step[row, 1] = position
        step[row, 2] = tables[step[row, 3], position // KV_BLOCK] * KV_BLOCK + KV_BLOCK - 1
        if i % 3 == 1:
            tables[step[row, 3], 2] = -1


def _top_k(
    rng: Rng,
    rows: int,
    vocab: int,
    k: int,
    edit: Callable[[Array], None] | None = None,
    stride: int = 0,
    mask: Callable[[Rng, int, int], Array] | None = None,
) -> CaseLaunch:
    logits = _logits(rng, rows, vocab, stride)
    if edit:
        edit(logits)
    return CaseLaunch(
        {"rows": rows, "vocab": vocab, "stride": stride or vocab, "k": k},
        {
            "logits": logits,
            "mask": mask(rng, rows, vocab) if mask else np.zeros(1),
            "ids": blank(rows * k, "i32"),
            "values": blank(rows * k, "f32"),
            "total": blank(rows * 2, "f32"),
        },
        {"MASK": int(mask is not None)},
    )


def _few_allowed(rng: Rng, rows: int, vocab: int) -> Array:
    """Allow five tokens in each row, fewer than k."""
    allowed = np.zeros((rows, vocab), bool)
    for row in allowed:
        row[rng.permutation(vocab)[:5]] = True
    return mask_bits(allowed)


def _few_values(logits: Array) -> None:
    np.rint(logits, out=logits)
    logits += 0.5  # no zeros: 0 and -0 are equal but have different bits


def _some_nan(logits: Array) -> None:
    logits[0, [3, 90]] = np.nan
    logits[1, 17] = np.inf
    logits[1, 18:] = -np.inf


def _crowded(logits: Array) -> None:
    """Repeat values at regular distances, so that many tokens compete for the same places."""
    logits[:] = -(np.arange(logits.shape[1]) % 1024)


def cases() -> Iterator[Case]:
    """Yield vocabularies around a workgroup and a real one, ties, NaN, the ends of rings, blocks and tables."""
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
    yield Case(name, "stride", _argmax, (3, 500, None, 517))
    for rows, vocab in ((1, 1), (2, 255), (3, 64), (1, 128256)):
        yield Case(name, f"masked-l{rows}-v{vocab}", _argmax, (rows, vocab, None, 0, 1))
    yield Case(name, "masked-stride", _argmax, (3, 500, None, 517, 1))
    yield Case(name, "masked-forbidden", _argmax, (3, 500, _forbidden, 0, 1))
    yield Case(name, "masked-first-and-last", _argmax, (3, 500, _first_and_last, 0, 1))
    name = "top_k"
    for rows, vocab, k in ((1, 1, 1), (2, 255, 40), (7, 257, 8), (3, 256, 256), (1, 128256, 64)):
        yield Case(name, f"l{rows}-v{vocab}-k{k}", _top_k, (rows, vocab, k))
    yield Case(name, "ties", _top_k, (3, 300, 50, _few_values))
    yield Case(name, "crowded", _top_k, (1, 20000, 200, _crowded))
    yield Case(name, "nan-inf", _top_k, (3, 300, 20, _some_nan))
    yield Case(name, "stride", _top_k, (3, 500, 40, None, 517))
    for rows, vocab, k in ((2, 255, 40), (1, 128256, 64)):
        yield Case(name, f"masked-l{rows}-v{vocab}-k{k}", _top_k, (rows, vocab, k, None, 0, _mask))
    yield Case(name, "masked-few", _top_k, (3, 300, 20, None, 311, _few_allowed))


def batches() -> Iterator[Case]:
    """Yield rows of logits for the rule of batch invariance."""
    yield Case("top_k", "batch", _top_k, (BATCH_ROWS, 700, 16))
