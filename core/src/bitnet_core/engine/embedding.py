"""Embeddings of texts: the last hidden rows of many texts in steps without padding, pooled on the host.

A step takes the next tokens of one text after another until it is full, so texts of unequal lengths need no padding.
Only the last text of a step may continue in the next one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.run.request_groups import RequestGroups
from bitnet_core.engine.schedule.scheduler import Scheduler
from bitnet_core.model.config import PoolingMode

Rows = npt.NDArray[np.float32]

_STEPS = 16
"""Full steps after which other threads may use the engine."""


class _TextPart(NamedTuple):
    """Tokens of a text in a step. number: index of the text; length: tokens of the whole text."""

    number: int
    length: int
    span: ScheduledTokens

    def rows(self, mode: PoolingMode) -> range:
        """Return the rows that the pooling uses, counted from the first of this part."""
        end = len(self.span.tokens)
        if mode == "mean":
            return range(end)
        if mode == "cls":
            return range(int(self.span.position == 0))
        return range(end - 1, end) if self.span.position + end == self.length else range(0)


def groups(texts: Sequence[Sequence[int]], chunk: int) -> Iterator[slice]:
    """Yield slices of consecutive texts that take about _STEPS steps of `chunk` rows."""
    first, rows = 0, 0
    for number, tokens in enumerate(texts):
        rows += len(tokens)
        if rows >= _STEPS * chunk or number + 1 == len(texts):
            yield slice(first, number + 1)
            first, rows = number + 1, 0


def pooled(
    runner: Runner | RequestGroups, scheduler: Scheduler, texts: Sequence[Sequence[int]], mode: PoolingMode
) -> Rows:
    """Return f32[texts, H]: the last or first hidden row of each text, or the mean of its rows."""
    out = np.zeros((len(texts), runner.weights.config.hidden), np.float32)
    with closing(_steps(scheduler, texts)) as steps:  # after an error, blocks are returned before recovery
        for parts in steps:
            _add_step(runner, scheduler.chunk, parts, mode, out)
    return out


def _steps(scheduler: Scheduler, texts: Sequence[Sequence[int]]) -> Generator[list[_TextPart], None, None]:
    """Yield the parts of each step. Their texts own cache blocks until the next step is taken."""
    waiting = list(enumerate(texts))[::-1]
    done, req_index = 0, -1  # computed tokens and table row of the first waiting text
    with ExitStack() as its_blocks:
        while waiting:
            parts: list[_TextPart] = []
            room = scheduler.chunk
            with ExitStack() as blocks_of_ended:
                while waiting and room and (done or not parts or scheduler.admission.has_room(len(waiting[-1][1]))):
                    number, tokens = waiting[-1]
                    if not done:
                        req_index = its_blocks.enter_context(scheduler.admission.borrow_index(len(tokens)))
                    span = ScheduledTokens(req_index, done, tuple(tokens[done : done + room]))
                    parts.append(_TextPart(number, len(tokens), span))
                    room -= len(span.tokens)
                    done += len(span.tokens)
                    if done == len(tokens):
                        blocks_of_ended.push(its_blocks.pop_all())
                        waiting.pop()
                        done = 0
                yield parts


def _add_step(
    runner: Runner | RequestGroups, chunk: int, parts: Sequence[_TextPart], mode: PoolingMode, out: Rows
) -> None:
    """Compute a step, and add the hidden rows that the pooling uses to the sums of their texts."""
    wanted: list[int] = []
    owners: list[int] = []
    first = 0
    for part in parts:
        rows = part.rows(mode)
        wanted += [first + row for row in rows]
        owners += [part.number] * len(rows)
        first += len(part.span.tokens)
    hidden = runner.hidden_step([part.span for part in parts], wanted, chunk)
    if mode == "mean":
        hidden /= np.array([part.length for part in parts for _ in part.span.tokens], np.float32)[:, None]
    np.add.at(out, owners, hidden)
