"""A drafter for measurements that knows the texts and has a given acceptance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bitnet_core.engine.request.per_request import PerRequest
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.speculation.drafter import Drafter

_DRAWN = 1024
"""Random numbers drawn at once."""

Texts = Mapping[tuple[int, ...], list[int]]
"""Generated tokens by prompt."""


class SimulatedDrafter:
    """A drafter each of whose tokens is right with a given probability, if those before it are. inner: a real drafter,
    whose drafts are discarded, so that drafting takes as long. texts: of all requests, with greedy sampling."""

    def __init__(self, inner: Drafter, texts: Texts, probability: float, vocab: int) -> None:
        self.kind = inner.kind
        self._inner = inner
        self._probability = probability
        self._vocab = vocab
        self._random = np.random.default_rng(0)
        self._wrong: list[bool] = []  # drawn in advance, as that is quicker
        self._of_request = PerRequest(lambda request: texts[tuple(request.tokens[: request.prompt_tokens])])

    def propose(self, limits: Mapping[Request, int]) -> dict[Request, list[int]]:
        """Return the next tokens of each text, some of them replaced by wrong ones."""
        self._inner.propose(limits)
        drafts: dict[Request, list[int]] = {}
        for request, limit in limits.items():
            done = request.generated_tokens
            coming = self._of_request[request][done : done + limit]
            drafts[request] = [(token + self._draw()) % self._vocab for token in coming]
        return drafts

    def _draw(self) -> bool:
        """Return whether the next draft token is wrong."""
        if not self._wrong:
            self._wrong = (self._random.random(_DRAWN) >= self._probability).tolist()
        return self._wrong.pop()

    def committed(self, request: Request, row: int, drafted: int, accepted: int) -> None:
        """Pass the result to the inner drafter."""
        self._inner.committed(request, row, drafted, accepted)

    def close(self) -> None:
        """Do nothing: the engine closes the inner drafter."""
