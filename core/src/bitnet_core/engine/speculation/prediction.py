"""Draft tokens by the model's own head for multi-token prediction (Gloeckle et al. 2024; DeepSeek-V3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.run.model_runner import Runner


class PredictionDrafter:
    """A drafter that proposes the head's likeliest tokens. runner: returns the runner in use, whose steps the head
    follows."""

    kind = "mtp"

    def __init__(self, runner: Callable[[], Runner]) -> None:
        self._runner = runner

    def propose(self, limits: Mapping[Request, int]) -> dict[Request, list[int]]:
        """Return the head's tokens; none for a request whose last step the head did not follow."""
        drafts = self._runner().draft(
            {request.req_index: request.tokens for request in limits},
            {request.req_index: limit for request, limit in limits.items()},
        )
        return {request: drafts[request.req_index] for request in limits if request.req_index in drafts}

    def committed(self, request: Request, row: int, drafted: int, accepted: int) -> None:
        """Do nothing: the runner's `keep_rows` passes the result to the head."""

    def close(self) -> None:
        """Do nothing: the head is part of the runner."""
