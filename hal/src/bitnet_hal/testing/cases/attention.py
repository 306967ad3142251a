"""Cases of attention over the paged cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bitnet_hal.kernels.catalogue import KV_BLOCK, KV_TYPES, kv_row_bytes
from bitnet_hal.kernels.spec import ParamDict
from bitnet_hal.reference.attention import encode_cache_rows
from bitnet_hal.rounding import ceil_div
from bitnet_hal.testing.cases.case import BATCH_ROWS, Array, Case, CaseLaunch, Rng, blank
from bitnet_hal.testing.cases.data import block_tables, normal, step_rows

STALE = 0xFF
"""Byte in every cache row that no sequence owns: NaN in f32, f16 and the scale of an int8 row."""


@dataclass(frozen=True)
class AttentionBatch:
    """The (sequence, position) of each row; position -1 is an unused row. Each sequence's cache reaches to its last
    position."""

    rows: Sequence[tuple[int, int]]
    heads: tuple[int, int] = (4, 4)
    head_dim: int = 64
    kv: int = 1
    q_scale: float = 1.0

    def lengths(self) -> list[int]:
        """Return the cached positions of each sequence."""
        reach = [0] * (1 + max(sequence for sequence, _ in self.rows))
        for sequence, position in self.rows:
            reach[sequence] = max(reach[sequence], position + 1)
        return reach


def _cache(rng: Rng, batch: AttentionBatch, tables: Array, n_blocks: int) -> Array:
    """Return u8[n_blocks, kv head, KV_BLOCK, row_bytes]: random rows at the positions of sequences, stale rows
    elsewhere."""
    n_kv = batch.heads[1]
    row_bytes = kv_row_bytes(batch.kv, batch.head_dim)
    cache = np.full((n_blocks, n_kv, KV_BLOCK, row_bytes), STALE, dtype=np.uint8)
    for sequence, length in enumerate(batch.lengths()):
        positions = np.arange(length)
        rows = encode_cache_rows(normal(rng, length, n_kv, batch.head_dim), batch.kv, row_bytes)
        cache[tables[sequence, positions // KV_BLOCK], :, positions % KV_BLOCK, : rows.shape[-1]] = rows
    return cache


def cached(rng: Rng, batch: AttentionBatch) -> tuple[ParamDict, dict[str, Array]]:
    """Return the parameters of attention, and k_cache, v_cache, step and tables."""
    rows = len(batch.rows)
    n_heads, n_kv = batch.heads
    head_dim = batch.head_dim
    lengths = batch.lengths()
    max_blocks = ceil_div(max(max(lengths), 1), KV_BLOCK) + 1
    n_blocks = sum(ceil_div(length, KV_BLOCK) for length in lengths) + 2
    tables = block_tables(rng, lengths, max_blocks, n_blocks)
    sequences, positions = (np.array(column) for column in zip(*batch.rows, strict=True))
    slots = tables[sequences, positions // KV_BLOCK] * KV_BLOCK + positions % KV_BLOCK
    params: ParamDict = {
        "rows": rows,
        "n_heads": n_heads,
        "n_kv_heads": n_kv,
        "head_dim": head_dim,
        "row_bytes": kv_row_bytes(batch.kv, head_dim),
        "max_blocks": max_blocks,
        "scale": head_dim**-0.5,
    }
    return params, {
        "k_cache": _cache(rng, batch, tables, n_blocks),
        "v_cache": _cache(rng, batch, tables, n_blocks),
        "step": step_rows(np.zeros(rows), positions, np.where(positions < 0, -1, slots), sequences),
        "tables": tables,
    }


def attended(rng: Rng, batch: AttentionBatch) -> CaseLaunch:
    """Return a launch of attention with random queries."""
    rows = len(batch.rows)
    n_heads, _ = batch.heads
    head_dim = batch.head_dim
    params, arrays = cached(rng, batch)
    arrays["q"] = normal(rng, rows, n_heads, head_dim) * np.float32(batch.q_scale)
    arrays["out"] = blank(rows * n_heads * head_dim, "f32")
    return CaseLaunch(params, arrays, {"KV": batch.kv})


def _nan_query(rng: Rng) -> CaseLaunch:
    """Put a NaN into one row's query: only that row's head may become NaN."""
    launch = attended(rng, AttentionBatch([(0, 10), (1, 70), (0, 12)], (4, 2)))
    launch.arrays["q"][1, 2, 5] = np.nan
    return launch


def prompt(count: int, first: int = 0, sequence: int = 0) -> list[tuple[int, int]]:
    """Return `count` rows of a sequence from position `first` on."""
    return [(sequence, position) for position in range(first, first + count)]


def cases() -> Iterator[Case]:
    """Yield cache types, grouped heads, lengths around a block, prompts, mixed batches, unused rows."""
    batches: dict[str, AttentionBatch] = {}
    for kv, cache in enumerate(KV_TYPES):
        batches[f"{cache}-one-token"] = AttentionBatch([(0, 0)], kv=kv)
        batches[f"{cache}-gqa"] = AttentionBatch([(0, 64), (1, 3)], (20, 5), 128, kv)
        batches[f"{cache}-prompt"] = AttentionBatch(prompt(33), (4, 2), 32, kv)
        batches[f"{cache}-odd-head"] = AttentionBatch([(0, 5), (0, 6)], (3, 1), 6, kv)
    for position in (62, 63, 64, 65, 600):
        batches[f"position-{position}"] = AttentionBatch([(0, position)], (8, 2))
    batches["decode-batch"] = AttentionBatch([(s, 20 * s + 1) for s in range(8)], (4, 1), 80)
    batches["mixed"] = AttentionBatch([(0, 130), *prompt(7, 60, 1), (2, 0), *prompt(9, 0, 3)], (4, 2), 32)
    batches["unused-rows"] = AttentionBatch([(0, -1), (0, 40), (1, -1), (1, 90), (2, -1)], (4, 2), 32)
    batches["large-scores"] = AttentionBatch([(0, 100), (1, 30)], (4, 4), 64, q_scale=100)
    several = [(0, 130), *prompt(40, 60, 1), (2, 0), *prompt(40, 0, 3), (4, -1), (1, -1)]
    for prefix, kv in (("", KV_TYPES.index("f16")), ("int8-", KV_TYPES.index("int8"))):
        batches[f"{prefix}prompt-d128"] = AttentionBatch(prompt(70, 60), (4, 1), 128, kv)
        batches[f"{prefix}prompt-d256"] = AttentionBatch(prompt(70, 60), (6, 1), 256, kv)
        for head_dim in (64, 128):
            batches[f"{prefix}prompts-d{head_dim}"] = AttentionBatch(several, (8, 2), head_dim, kv)
    batches["t512"] = AttentionBatch(prompt(512), (2, 1), 16)
    batches["position-4095"] = AttentionBatch([(0, 4095), (1, 4096)], (2, 1), 64)
    batches["position-32767"] = AttentionBatch([(0, 32767)], (2, 1), 32)
    for label, batch in batches.items():
        yield Case("attention", label, attended, (batch,))
    yield Case("attention", "nan-query", _nan_query)


def batch_rows() -> list[tuple[int, int]]:
    """Return BATCH_ROWS rows: single rows of sequences between parts of prompts, then a long prompt."""
    few = [(0, 130), *prompt(5, 60, 1), (2, 0), *prompt(9, 3, 3), (4, 300), (5, 63)]
    return [*few, *prompt(BATCH_ROWS - len(few), 100, 6)]


def batches() -> Iterator[Case]:
    """Yield rows with few and many positions for the rule of batch invariance."""
    for kv, cache in enumerate(KV_TYPES):
        for heads, head_dim in (((4, 4), 64), ((8, 2), 128), ((3, 1), 80)):
            label = f"batch-{cache}-h{heads[0]}-d{head_dim}"
            yield Case("attention", label, attended, (AttentionBatch(batch_rows(), heads, head_dim, kv),))
