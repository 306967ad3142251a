"""Steps of texts whose tokens the device chooses alone: bursts, what is queued behind them, guesses."""

from __future__ import annotations

import time
from collections.abc import Iterable

from bitnet_core.engine.booking import Booking, Update
from bitnet_core.engine.choosing import Row, in_order
from bitnet_core.engine.lookup import GUESSES, Payoff
from bitnet_core.engine.pace import Pace
from bitnet_core.engine.places import Places
from bitnet_core.engine.runner import Runner
from bitnet_core.engine.sampling import not_a_number
from bitnet_core.engine.sequence import Sequence
from bitnet_core.engine.spans import Span
from bitnet_core.plan.small_head import Choice


class Greedy:
    """prompt_lookup: as in EngineOptions, "off" where the device computes a row in another way among others."""

    def __init__(self, places: Places, booking: Booking, counts: dict[str, int], burst_seconds: float) -> None:
        self.pace = Pace(burst_seconds)
        self.prompt_lookup: Choice = "off"
        self._places, self._booking, self._counts = places, booking, counts
        self._payoff = Payoff()

    def restart(self, runner: Runner) -> None:
        """Blocks have changed hands, and texts have begun."""
        self.pace.restart()
        runner.bursts.forget()

    def queued(self, runner: Runner) -> int:
        """Tokens of each text that are on their way."""
        return runner.bursts.queued(last_rows(self._places.running))

    def step(self, runner: Runner, queued: int, chunk: int) -> list[Update]:
        """Tokens of every running text, all of them greedy; chunk: the most rows of a prompt step."""
        running = self._places.running
        if not queued and (guessed := self._guesses(running[0], chunk)):
            return self._check(runner, running[0], guessed, chunk)
        count = queued or self._length(runner)
        self._places.reserve(count)
        ahead, going_on = self._ahead(runner, count)
        began = time.perf_counter()
        tokens = runner.bursts.make(last_rows(running), count, ahead, last_rows(going_on))
        self.pace.book(count, time.perf_counter() - began)
        return [self._take(text, count, row) for text, row in zip(list(running), tokens.tolist(), strict=True)]

    def _take(self, sequence: Sequence, count: int, row: list[int]) -> Update:
        good = row[: row.index(-1)] if -1 in row else row
        update = self._booking.accept(sequence, len(good), good)
        if len(good) < count and sequence.finish_reason is None:
            update = self._booking.fail(sequence, not_a_number(), update.tokens)
        return update

    def _length(self, runner: Runner) -> int:
        room, waiting = min(map(self._places.room, self._places.running)), bool(self._places.waiting)
        return self.pace.length(room, waiting=waiting, followed=self._goes_ahead(runner))

    def _goes_ahead(self, runner: Runner) -> bool:
        """Whether bursts are queued before the last is read, so that the device does not wait for the host. Not where
        texts wait for the end of others, nor of delta nets, whose states cannot go back."""
        return runner.bursts.go_ahead and not self._places.waiting and not self._places.recurrent

    def _ahead(self, runner: Runner, count: int) -> tuple[int, list[Sequence]]:
        """Tokens to queue behind the next `count`, and of which texts; none where their next tokens may be guessed."""
        places = self._places
        room = {text: left for text in places.running if (left := places.room(text) - count) > 0}
        if not room or not self._goes_ahead(runner) or (len(room) == 1 and self._looks()):
            return 0, []
        ahead = self.pace.ahead(count, min(room.values()))
        return (ahead, list(room)) if ahead and places.reserve_free(room, count + ahead) else (0, [])

    def _looks(self) -> bool:
        """Whether next tokens are guessed, as far as that is known before they are."""
        return self.prompt_lookup == "on" or (self.prompt_lookup == "auto" and self.pace.slow)

    def _guesses(self, sequence: Sequence, chunk: int) -> list[int]:
        """Tokens to check; none where that does not pay, or would go past the end of the text or the cache."""
        if not self._looks() or len(self._places.running) > 1:  # rows of several texts keep the device busy
            return []
        if min(self._places.room(sequence), chunk) <= GUESSES:
            return []
        guessed = sequence.lookup.guesses(sequence.tokens)
        wanted = guessed and (self.prompt_lookup == "on" or self._payoff.pays(self.pace.token_seconds))
        return guessed if wanted else []

    def _check(self, runner: Runner, sequence: Sequence, guessed: list[int], chunk: int) -> list[Update]:
        """The guesses that are right, and the token after them. What the others left in the cache is overwritten."""
        self._places.reserve(1 + len(guessed))
        if sequence not in self._places.running:  # it stepped back for lack of room
            return []
        began = time.perf_counter()
        rows = [Row(sequence) for _ in range(1 + len(guessed))]
        span = Span(sequence.lane, sequence.computed, (sequence.tokens[-1], *guessed))
        ordered, wants = in_order(rows)
        steps = runner.prompt_step([span], range(len(rows)), wants, chunk)
        for row, scores in zip(ordered, steps, strict=True):
            row.settle(scores)
        right = next((n for n, token in enumerate(guessed) if rows[n].token != token), len(guessed))
        tokens = [row.token for row in rows[: right + 1] if row.token is not None]
        self._payoff.book(time.perf_counter() - began, len(tokens))
        self._counts["guessed_tokens"] += len(guessed)
        self._counts["right_guesses"] += right
        update, error = self._booking.accept(sequence, len(tokens), tokens), rows[right].error
        if error is not None and sequence.finish_reason is None:
            update = self._booking.fail(sequence, error, update.tokens)
        return [update]


def last_rows(sequences: Iterable[Sequence]) -> list[Span]:
    """The rows that decode one token of each."""
    return [Span(s.lane, s.computed, (s.tokens[s.computed],)) for s in sequences]
