"""What steps gave: tokens and ends of texts, full blocks that others may reuse, counts and seconds."""

from __future__ import annotations

from typing import NamedTuple

from bitnet_hal.kernels.catalogue import KV_BLOCK

from bitnet_core.engine.choosing import Row
from bitnet_core.engine.history import ErrorHistory
from bitnet_core.engine.places import Places
from bitnet_core.engine.sequence import Sequence


class Update(NamedTuple):
    """What a step gave one sequence; sequence.finish_reason tells whether it is done."""

    sequence: Sequence
    tokens: tuple[int, ...]


class Booking:
    """counts, seconds, errors: as in Scheduler."""

    def __init__(self, places: Places, counts: dict[str, int], errors: ErrorHistory) -> None:
        self._places, self._counts, self._errors = places, counts, errors
        self.seconds: dict[str, float] = {"prefill": 0.0, "decode": 0.0}

    def accept(self, sequence: Sequence, count: int, tokens: list[int]) -> Update:
        """Book `count` computed rows and the tokens they gave, up to where the sequence ends."""
        before, room = sequence.computed, self._places.room(sequence)
        if sequence.constraint is None and len(tokens) < room and sequence.stop_ids.isdisjoint(tokens):
            accepted = tokens
            sequence.tokens += accepted
        else:
            accepted = _accepted(sequence, tokens, room)
        sequence.computed = min(before + count, len(sequence.tokens))
        if not sequence.max_tokens and not sequence.pending:
            sequence.finish_reason = "length"
        self._counts["generated_tokens"] += len(accepted)
        self._offer(sequence, before)
        if sequence.finish_reason:
            self._places.finish(sequence, sequence.finish_reason)
        return Update(sequence, tuple(accepted))

    def _offer(self, sequence: Sequence, before: int) -> None:
        """Others may begin with the blocks that have been filled since `before` rows were computed."""
        places = self._places
        if places.recurrent and sequence.computed == snapshot_at(sequence) > before:
            places.snapshots.keep(sequence.digests(sequence.computed)[-1], sequence.lane)
        if sequence.computed // KV_BLOCK > before // KV_BLOCK:
            digests = sequence.digests(sequence.computed)
            for index in range(before // KV_BLOCK, len(digests)):
                places.blocks.register(sequence.blocks[index], digests[index])

    def take(self, sequence: Sequence, count: int, rows: list[Row]) -> Update:
        """Book `count` computed rows, and the token that the last of `rows` chose."""
        failed = next((row.error for row in rows if row.error is not None), None)
        if failed is not None:
            return self.fail(sequence, failed)
        if sequence.scored and count == sequence.pending:
            sequence.scored = None
        token = rows[-1].token if rows else None
        try:
            return self.accept(sequence, count, [] if token is None else [token])
        except Exception as exc:  # noqa: BLE001 - a constraint's own; the neighbours have no part in it
            return self.fail(sequence, exc)

    def fail(self, sequence: Sequence, error: Exception, tokens: tuple[int, ...] = ()) -> Update:
        """End a sequence with an error, behind these tokens of the step."""
        self._errors.add(error)
        sequence.error = error
        self._places.finish(sequence, "error")
        return Update(sequence, tokens)

    def time(self, taking_part: list[tuple[Sequence, bool]], seconds: float, done: list[Update]) -> None:
        """A step took so long; taking_part: its sequences, and whether they had no token yet."""
        for sequence, prefilling in taking_part:
            if prefilling:
                sequence.prefill_seconds += seconds
            else:
                sequence.decode_seconds += seconds
        prompts = any(prefilling for _, prefilling in taking_part)
        self.seconds["prefill" if prompts else "decode"] += seconds
        if not prompts:
            self._counts["decoded_tokens"] += sum(len(update.tokens) for update in done)


def _accepted(sequence: Sequence, tokens: list[int], room: int) -> list[int]:
    """Give a sequence tokens one by one; those before its end."""
    accepted: list[int] = []
    for token in tokens:
        if token in sequence.stop_ids:
            sequence.finish_reason = "stop"
            break
        accepted.append(token)
        sequence.tokens.append(token)
        if sequence.constraint is not None and not sequence.constraint.accept(token):
            sequence.finish_reason = "stop"
            break
        if len(accepted) >= room:
            sequence.finish_reason = "length"
            break
    return accepted


def snapshot_at(sequence: Sequence) -> int:
    """Where the last full block of its prompt ends, with a token behind it."""
    return (sequence.prompt_tokens - 1) // KV_BLOCK * KV_BLOCK
