"""Speculation in every step, regardless of its cost, to compare texts with those without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.speculation.drafter import Drafter
from bitnet_core.engine.speculation.policy import DraftPolicy


class EveryStep(DraftPolicy):
    """A policy that requests `count` draft tokens for every request in every step, as far as rows allow."""

    def __init__(self, kind: str, counts: dict[str, int], count: int) -> None:
        super().__init__(kind, counts)
        self._count = count

    def limits(self, requests: Sequence[Request], most: Mapping[Request, int], rows: int) -> dict[Request, int]:
        """Divide the rows in the order of the requests."""
        found: dict[Request, int] = {}
        spare = rows - len(requests)
        for request in requests:
            if number := min(self._count, most[request], spare):
                found[request] = number
                spare -= number
        return found

    def worthwhile(
        self, limits: Mapping[Request, int], drafts: dict[Request, list[int]], requests: int, rows: int
    ) -> dict[Request, list[int]]:
        """Return all of `drafts`."""
        return drafts

    def until_next(self, requests: Sequence[Request], rows: int) -> float:
        """Return 0: the drafter uses no memory."""
        return 0


def draft_always(engine: Engine, drafter: Drafter, count: int) -> None:
    """Use a drafter in every step. The engine must be able to verify draft tokens."""
    engine.speculation.drafter = drafter
    speculative = engine.scheduler.speculative
    speculative.use(drafter, engine.worker.verify_rows)
    speculative.policy = EveryStep(drafter.kind, engine.scheduler.counts, count)


def draft_never(engine: Engine) -> None:
    """Use no drafter."""
    engine.speculation.drafter = None
    engine.scheduler.speculative.use(None, 0)
