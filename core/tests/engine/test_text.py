"""Stop strings never leak, whatever the pieces."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from bitnet_core.engine.sampling import Sampler, SamplingParams
from bitnet_core.engine.sequence import Sequence
from bitnet_core.engine.text import StopFilter, TextMaker
from bitnet_hal.errors import UsageError


def shown(pieces: list[str], stops: list[str]) -> list[str]:
    """What a caller sees after each piece and at the end."""
    stop = StopFilter(stops)
    return [*(stop.push(piece) for piece in pieces), stop.flush()]


def test_text_that_may_become_a_stop_string_waits() -> None:
    assert shown(["ab", "c<", "/", "s", ">d"], ["</s>"]) == ["ab", "c", "", "", "", ""]
    assert shown(["ab<", "/x", "<"], ["</s>"]) == ["ab", "</x", "", "<"]


def test_the_first_stop_string_counts() -> None:
    assert "".join(shown(["one two three"], ["three", "two"])) == "one "


def test_stop_strings_that_repeat_themselves() -> None:
    assert "".join(shown(list("aaab"), ["aab"])) == "a"


def test_random_cuts_give_the_same_text() -> None:
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choices("ab<", k=30))
        stops = ["".join(rng.choices("ab<", k=rng.randint(2, 5))) for _ in range(2)]
        cuts = sorted(rng.sample(range(31), 5))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 30], strict=True)]
        found = [text.find(stop) for stop in stops if stop in text]
        joined = "".join(shown(pieces, stops))
        assert joined == text[: min(found, default=30)] or any(joined == text[:at] for at in found)
        assert not any(stop in joined for stop in stops)


@pytest.mark.parametrize("stops", [[""], [b"x"], [None], 5])
def test_what_is_no_stop_string_is_refused(stops: Any) -> None:
    with pytest.raises(UsageError, match="stop strings"):
        StopFilter(stops)


class Letters:
    """A decoder whose tokens are characters."""

    def push(self, token: int) -> str:
        return chr(token)

    def push_all(self, tokens: Iterable[int]) -> str:
        return "".join(map(chr, tokens))

    def flush(self) -> str:
        return ""


@pytest.mark.parametrize("stops", [[], ["cd"], ["zz"]])
def test_catching_up_gives_the_text_of_single_steps(stops: list[str]) -> None:
    def made(advance: Callable[[TextMaker], str]) -> tuple[str, int]:
        sequence = Sequence([1], 50, Sampler(SamplingParams(), 256), frozenset())
        maker, text = TextMaker(sequence, Letters(), StopFilter(stops)), ""
        for part in ("ab", "c", "def", "", "z"):
            sequence.tokens += map(ord, part)
            text += advance(maker)
        return text + "".join(piece.text for piece in maker.end()), maker.seen

    def singly(maker: TextMaker) -> str:
        pieces = []
        while maker.behind:
            pieces.append(maker.advance().text)
        return "".join(pieces)

    assert made(lambda maker: maker.catch_up().text) == made(singly)
