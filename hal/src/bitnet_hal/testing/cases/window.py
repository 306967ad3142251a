"""Cases of window_attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitnet_hal.kernels.catalogue import KV_BLOCK, KV_TYPES
from bitnet_hal.testing.cases.attention import STALE, AttentionBatch, attended, batch_rows, prompt
from bitnet_hal.testing.cases.case import Case, CaseLaunch, Rng


def _build(rng: Rng, batch: AttentionBatch, window: int) -> CaseLaunch:
    """Return a launch whose caches hold stale rows at positions that no row sees."""
    launch = attended(rng, batch)
    launch.params["window"] = window
    seen = [np.zeros(length, bool) for length in batch.lengths()]
    for sequence, position in batch.rows:
        if position >= 0:
            seen[sequence][max(0, position + 1 - window) : position + 1] = True
    for sequence, known in enumerate(seen):
        positions = np.flatnonzero(~known)
        blocks = launch.arrays["tables"][sequence, positions // KV_BLOCK]
        for cache in ("k_cache", "v_cache"):
            launch.arrays[cache][blocks, :, positions % KV_BLOCK] = STALE
    return launch


def _nan_query(rng: Rng) -> CaseLaunch:
    """Put a NaN into one row's query: only that row's head may become NaN."""
    launch = _build(rng, AttentionBatch([(0, 90), (1, 70), (0, 92)], (4, 2)), 33)
    launch.arrays["q"][1, 2, 5] = np.nan
    return launch


def cases() -> Iterator[Case]:
    """Yield windows within a block, of whole blocks and of several, prompts, mixed batches, unused rows."""
    name = "window_attention"
    for kv, cache in enumerate(KV_TYPES):
        yield Case(name, f"{cache}-one-token", _build, (AttentionBatch([(0, 200)], (8, 2), 64, kv), 100))
        yield Case(name, f"{cache}-prompt", _build, (AttentionBatch(prompt(150, 40), (4, 2), 32, kv), 70))
        yield Case(name, f"{cache}-odd-head", _build, (AttentionBatch([(0, 65), (0, 66)], (3, 1), 6, kv), 5))
    for window in (1, 2, 63, 64, 65, 128, 512):
        for position in (0, 63, 64, 191, 600):
            yield Case(
                name, f"w{window}-position-{position}", _build, (AttentionBatch([(0, position)], (4, 2)), window)
            )
        yield Case(name, f"w{window}-prompt", _build, (AttentionBatch(prompt(70, 60), (4, 1), 128), window))
    mixed = [(0, 130), *prompt(7, 60, 1), (2, 0), *prompt(40, 0, 3), (4, 700)]
    unused = [(0, -1), (0, 140), (1, -1), (1, 90), (2, -1)]
    for window in (3, 64, 100):
        yield Case(name, f"w{window}-mixed", _build, (AttentionBatch(mixed, (4, 2), 32), window))
        yield Case(name, f"w{window}-unused-rows", _build, (AttentionBatch(unused, (4, 2), 32), window))
    yield Case(name, "w512-t512", _build, (AttentionBatch(prompt(512, 300), (2, 1), 16), 512))
    yield Case(name, "larger-than-the-text", _build, (AttentionBatch(prompt(9), (4, 4), 64), 1 << 20))
    yield Case(name, "nan-query", _nan_query)


def batches() -> Iterator[Case]:
    """Yield rows with windows of few and many positions for the rule of batch invariance."""
    for kv, cache in enumerate(KV_TYPES):
        for window in (20, 64, 130):
            case = (AttentionBatch(batch_rows(), (8, 2), 64, kv), window)
            yield Case("window_attention", f"batch-{cache}-w{window}", _build, case)
