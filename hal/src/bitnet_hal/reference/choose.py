"""Token selection: argmax_advance and top_k."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.reference.quantize import F32, Arrays, sizes
from bitnet_hal.rounding import ceil_div


def _candidates(a: Arrays, p: Params, c: Constants) -> tuple[F32, npt.NDArray[np.bool_]]:
    """Return logits[rows, vocab] and the mask bool[rows, vocab] of allowed tokens."""
    rows, vocab, stride = sizes(p, "rows", "vocab", "stride")
    logits = np.lib.stride_tricks.as_strided(a["logits"], (rows, vocab), (4 * stride, 4))
    if not c["MASK"]:
        return logits, np.ones((rows, vocab), bool)
    words = a["mask"][: rows * ceil_div(vocab, 32)].reshape(rows, -1).astype("<i4")
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    return logits, bits[:, :vocab].astype(bool)


def argmax_advance(a: Arrays, p: Params, c: Constants) -> None:
    """Append the greedy token of each row to its history and advance its row of step by one position."""
    rows, max_blocks, ring = sizes(p, "rows", "max_blocks", "ring")
    logits, allowed = _candidates(a, p, c)
    tables = a["tables"].reshape(-1, max_blocks)
    step = a["step"].reshape(-1, 4)
    history = a["history"].reshape(-1, ring + 1)
    for scores, may, row in zip(logits, allowed, a["index"][:rows].tolist(), strict=True):
        if step[row, 1] < 0:
            continue
        ids = np.flatnonzero(may)
        token = -1 if not ids.size or np.isnan(scores[ids]).any() else int(ids[np.argmax(scores[ids])])
        history[row, 0] += 1
        if history[row, 0] <= ring:
            history[row, history[row, 0]] = token
        position = int(step[row, 1]) + 1
        block = -1 if position // KV_BLOCK >= max_blocks else int(tables[step[row, 3], position // KV_BLOCK])
        if token < 0 or block < 0:
            step[row, :3] = token, -1, -1
        else:
            step[row, :3] = token, position, block * KV_BLOCK + position % KV_BLOCK


def top_k(a: Arrays, p: Params, c: Constants) -> None:
    """Write the k largest logits of each row in descending order, and the maximum and log-sum-exp of all."""
    rows, k = sizes(p, "rows", "k")
    logits, allowed = _candidates(a, p, c)
    ids = a["ids"][: rows * k].reshape(rows, k)
    values = a["values"][: rows * k].reshape(rows, k)
    total = a["total"][: rows * 2].reshape(rows, 2)
    ids[:] = -1
    values[:] = -np.inf
    for row in range(rows):
        tokens = np.flatnonzero(allowed[row])
        scores = logits[row, tokens]
        nan = np.isnan(scores)
        order = np.lexsort((~nan, -np.where(nan, np.float32(np.inf), scores)))[:k]
        ids[row, : order.size] = tokens[order]
        values[row, : order.size] = scores[order]
        most = scores.max(initial=np.float32(-np.inf))
        total[row] = most, np.log(np.sum(np.exp(scores - most), dtype=np.float64))
