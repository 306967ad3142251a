"""The reasoning of a reply is told apart from its answer, and ended where a limit says so."""

from __future__ import annotations

import numpy as np
import pytest
from bitnet_core.engine.output import OutputProcessor, StopFilter
from bitnet_core.engine.request.reasoning import Reasoning, ReasoningLimit
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.sampling.constraint import Mask
from bitnet_core.engine.sampling.sampler import Sampler
from bitnet_core.options.sampling import SamplingParams

OPEN, CLOSE, BREAK = 1, 2, 10
PROMPT = [40, 41]


class Letters:
    """A decoder for which token 10 is a line break and every other one above 32 its character."""

    def push(self, token: int) -> str:
        return "\n" if token == BREAK else chr(token)

    def flush(self) -> str:
        return ""


def made(
    tokens: list[int], prompt: list[int] = PROMPT, stops: tuple[str, ...] = ()
) -> tuple[OutputProcessor, str, str]:
    """The maker after these tokens, and what its pieces showed: (maker, reasoning, text)."""
    request = Request(list(prompt), 100, Sampler(SamplingParams(), 128), frozenset())
    output = OutputProcessor(request, Letters(), StopFilter(stops), Reasoning(OPEN, CLOSE, prompt))
    request.tokens += tokens
    chunks = []
    while output.behind:
        chunks.append(output.advance())
    chunks += output.end()
    return output, "".join(chunk.reasoning for chunk in chunks), "".join(chunk.text for chunk in chunks)


def ids(text: str) -> list[int]:
    """Tokens of Letters; < and > are the tags."""
    return [{"<": OPEN, ">": CLOSE, "\n": BREAK}.get(char, ord(char)) for char in text]


@pytest.mark.parametrize(
    ("reply", "prompt", "reasoning", "text"),
    [
        ("<\nhm\n>\n\nyes\n", "", "hm", "yes\n"),
        ("\nhm\n>\n\nyes", "ab<\n", "hm", "yes"),
        ("yes", "ab<\n\n>\n\n", "", "yes"),
        ("yes", "", "", "yes"),
        ("<hm", "", "hm", ""),
        ("<\n\n>\n\nyes", "", "", "yes"),
        ("<a>b<c>d", "", "ac", "bd"),
    ],
)
def test_what_is_reasoning_and_what_is_answer(reply: str, prompt: str, reasoning: str, text: str) -> None:
    output, shown, answered = made(ids(reply), ids(prompt) or PROMPT)
    result = output.generation("stop")
    assert (result.reasoning, result.text) == (reasoning, text)
    assert (shown.rstrip("\n"), answered) == (reasoning, text)
    assert result.tokens == tuple(ids(reply))


def test_stop_strings_end_the_answer_only() -> None:
    output, _, _ = made(ids("<a.b>c.d"), stops=(".",))
    assert output.stopped
    assert output.generation("stop").text == "c"
    assert output.generation("stop").reasoning == "a.b"


def allowed(mask: Mask) -> list[int]:
    return [int(token) for token in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


class OnlyNine:
    """A constraint: the token 9, three times."""

    def __init__(self) -> None:
        self.left = 3

    def mask(self) -> Mask:
        return np.array([1 << 9, 0], np.int32)

    def accept(self, token: int) -> bool:
        assert token == 9
        self.left -= 1
        return self.left > 0


def test_the_limit_forces_the_ending() -> None:
    limit = ReasoningLimit(Reasoning(OPEN, CLOSE, PROMPT), 2, [BREAK, CLOSE, BREAK], 64)
    taken = []
    for token in (OPEN, 50, 51):
        assert len(allowed(limit.mask())) == 64
        assert limit.accept(token)
    for _ in range(3):
        (only,) = allowed(limit.mask())
        taken.append(only)
        assert limit.accept(only)
    assert taken == [BREAK, CLOSE, BREAK]
    assert len(allowed(limit.mask())) == 64


def test_a_reply_that_ends_its_reasoning_itself_is_left_alone() -> None:
    limit = ReasoningLimit(Reasoning(OPEN, CLOSE, [OPEN]), 3, [CLOSE], 64)
    for token in (50, CLOSE, 51, 52, 53, 54):
        assert len(allowed(limit.mask())) == 64
        assert limit.accept(token)


def test_what_constrains_the_answer_leaves_the_reasoning_alone() -> None:
    limit = ReasoningLimit(Reasoning(OPEN, CLOSE, [OPEN]), 2, [CLOSE], 64, OnlyNine())
    for token in (50, 51, CLOSE):
        assert token in allowed(limit.mask())
        assert limit.accept(token)
    for last in (False, False, True):
        assert allowed(limit.mask()) == [9]
        assert limit.accept(9) is not last


def test_no_reasoning_at_all() -> None:
    limit = ReasoningLimit(Reasoning(OPEN, CLOSE, [OPEN]), 0, [CLOSE], 64)
    assert allowed(limit.mask()) == [CLOSE]


BLANK = np.array([1 << BREAK, 0], np.int32)


def test_a_reply_may_open_its_reasoning_before_a_constrained_answer() -> None:
    limit = ReasoningLimit(Reasoning(OPEN, CLOSE, PROMPT), 8, [CLOSE], 64, OnlyNine(), BLANK)
    assert allowed(limit.mask()) == sorted([9, OPEN])
    assert limit.accept(OPEN)
    assert len(allowed(limit.mask())) == 64
    assert limit.accept(50)
    assert limit.accept(CLOSE)
    assert allowed(limit.mask()) == sorted([9, BREAK])
    assert limit.accept(BREAK)
    assert limit.accept(9)
    assert allowed(limit.mask()) == [9]


def test_white_space_after_reasoning_ends() -> None:
    limit = ReasoningLimit(Reasoning(OPEN, CLOSE, [OPEN]), 8, [CLOSE], 64, OnlyNine(), BLANK)
    assert limit.accept(CLOSE)
    for _ in range(4):
        assert limit.accept(BREAK)
    assert allowed(limit.mask()) == [9]


def test_a_prompt_that_closes_the_reasoning_leaves_only_the_answer() -> None:
    limit = ReasoningLimit(Reasoning(OPEN, CLOSE, [OPEN, BREAK, CLOSE, BREAK]), 8, [CLOSE], 64, OnlyNine(), BLANK)
    assert allowed(limit.mask()) == [9]


def test_an_answer_that_has_begun_cannot_reason() -> None:
    limit = ReasoningLimit(Reasoning(OPEN, CLOSE, [5, CLOSE, 6]), 8, [CLOSE], 64, OnlyNine(), BLANK)
    assert allowed(limit.mask()) == sorted([9, OPEN])
    assert limit.accept(9)
    assert allowed(limit.mask()) == [9]
