"""The server's record of the prompts that a device has in its cache."""

from __future__ import annotations

from bitnet_core.engine.replicas.sent_prefixes import SentPrefixes
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.sampling.sampler import Sampler
from bitnet_core.options.sampling import SamplingParams


def request(*tokens: int) -> Request:
    return Request(list(tokens), 4, Sampler(SamplingParams(), 100), frozenset())


def test_the_oldest_ends_are_forgotten_first() -> None:
    kept = SentPrefixes(4)
    first, second = request(*[1] * 200), request(*[1] * 64, *[2] * 130)
    kept.add(first)
    assert kept.count(first) == 3
    assert kept.count(second) == 1
    assert kept.count(request(*[1] * 128)) == 1  # the last token is computed in any case
    kept.add(second)
    assert (kept.count(second), kept.count(first)) == (3, 2)  # 4 blocks: the end of the first is forgotten
    kept.add(request(*[3] * 64 * 3))
    assert (kept.count(second), kept.count(first)) == (1, 1)
