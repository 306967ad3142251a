"""Choosing tokens: argmax_advance and top_k."""

from __future__ import annotations

import numpy as np

from bitnet_core.kernels.catalogue import KV_BLOCK
from bitnet_core.kernels.spec import Constants, Params
from bitnet_core.reference.quantize import Arrays


def argmax_advance(a: Arrays, p: Params, c: Constants) -> None:
    """The greedy token of each row into history and step; the row moves on by one position."""
    rows, vocab, max_blocks, ring = (int(p[n]) for n in ("rows", "vocab", "max_blocks", "ring"))
    logits = a["logits"][: rows * vocab].reshape(rows, vocab)
    tables, step = a["tables"].reshape(-1, max_blocks), a["step"].reshape(-1, 4)
    history = a["history"].reshape(-1, ring + 1)
    for scores, row in zip(logits, a["index"][:rows].tolist(), strict=True):
        if step[row, 1] < 0:
            continue
        token = -1 if np.isnan(scores).any() else int(np.argmax(scores))
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
    """The k largest logits of each row, in falling order."""
    rows, vocab, k = (int(p[n]) for n in ("rows", "vocab", "k"))
    logits = a["logits"][: rows * vocab].reshape(rows, vocab)
    keys = np.where(np.isnan(logits), np.float32(np.inf), logits)
    order = np.lexsort((~np.isnan(logits), -keys), axis=-1)[:, :k]
    a["ids"][: rows * k].reshape(rows, k)[:] = order
    a["values"][: rows * k].reshape(rows, k)[:] = np.take_along_axis(logits, order, axis=1)
