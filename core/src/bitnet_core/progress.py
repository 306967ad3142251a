"""The type of progress callbacks."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (stage, units done, units in total); the unit depends on the stage: bytes, weights, tokens, steps."""
