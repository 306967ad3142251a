"""Stop strings never leak, whatever the pieces."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from bitnet_core.engine.output import OutputProcessor, StopFilter
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.sampling.sampler import Sampler
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.errors import UsageError


def shown(chunks: list[str], stops: list[str]) -> list[str]:
    """Return the text that a caller has after each piece and at the end."""
    stop = StopFilter(stops)
    return [*(stop.push(chunk) for chunk in chunks), stop.flush()]


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
        chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 30], strict=True)]
        found = [text.find(stop) for stop in stops if stop in text]
        joined = "".join(shown(chunks, stops))
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
    def made(advance: Callable[[OutputProcessor], str]) -> tuple[str, int]:
        request = Request([1], 50, Sampler(SamplingParams(), 256), frozenset())
        output, text = OutputProcessor(request, Letters(), StopFilter(stops)), ""
        for part in ("ab", "c", "def", "", "z"):
            request.tokens += map(ord, part)
            text += advance(output)
        return text + "".join(chunk.text for chunk in output.end()), output.seen

    def singly(output: OutputProcessor) -> str:
        chunks = []
        while output.behind:
            chunks.append(output.advance().text)
        return "".join(chunks)

    assert made(lambda output: output.advance_all().text) == made(singly)
