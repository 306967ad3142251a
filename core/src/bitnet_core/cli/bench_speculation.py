"""The part of `bitnet bench` about speculation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet_core.measure.speculation import SpeculationResult


def speculation_rows(result: SpeculationResult) -> Iterator[tuple[str, str]]:
    """Yield names and values for the table of results."""
    costs = result.row_seconds
    ratios = ", ".join(f"{rows}: {seconds / costs[1]:.2f}" for rows, seconds in costs.items())
    yield "verified rows", f"{ratios} (seconds of a step by rows, of {1e3 * costs[1]:.3f} ms for one)"
    for run in result.runs:
        name = result.kind if run.probability is None else f"P = {run.probability:g}"
        ratio = run.speed / result.plain_speed
        yield (
            f"speculation, {name}",
            f"{run.speed:.1f} tokens/s, {ratio:.2f} x without; {run.tokens_per_step:.2f} tokens a step, "
            f"{run.acceptance:.0%} of the draft tokens right",
        )
