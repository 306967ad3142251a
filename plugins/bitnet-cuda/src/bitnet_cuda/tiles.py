"""How a tuning is put together."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal import Tuning

Params = Mapping[str, int | float]
Constants = Mapping[str, int]


def tuned(
    group: int, tile: Mapping[str, int] | None = None, variant: str = "", *, workspace: int = 0, **private: int
) -> Tuning:
    """group: threads of a block, GROUP in the sources; private: their other constants, of which SHARED is bytes of
    dynamic shared memory."""
    return Tuning(dict(tile or {}), variant, {"GROUP": group, **private}, workspace)


def refused(why: str) -> UnsupportedError:
    """A launch that other kernels do better, or that this one cannot do."""
    return UnsupportedError(why, backend="cuda", operation="tuning")
