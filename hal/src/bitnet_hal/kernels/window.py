"""The optional kernel of attention over a sliding window (Beltagy et al. 2020, arXiv 2004.05150)."""

from __future__ import annotations

from dataclasses import replace

from bitnet_hal.kernels.base import ATTENTION
from bitnet_hal.kernels.params import u32

WINDOW_ATTENTION = replace(
    ATTENTION,
    name="window_attention",
    meaning="attention over the last `window` positions alone: p = max(0, position[t] - window + 1)..position[t]. "
    "Cache rows of earlier positions are not read.",
    params=(*ATTENTION.params, u32("window", "positions that a row sees, its own included")),
    base=False,
)
