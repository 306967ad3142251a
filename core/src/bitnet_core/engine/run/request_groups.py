"""Groups of requests that share the devices of a split (pipeline parallelism): while one device computes the rows of a
group, another one computes those of the next.

Each group has a thread, and scratch buffers on every device; caches and weights are shared. A row uses the keys and
values of its own request only, so the order of the groups on a device does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from bitnet_hal.launcher import RecordedLaunches

from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.run.multi_step_decoder import StepsInFlight
from bitnet_core.engine.sampling.logits import LogitsRequest, TopLogits

T = TypeVar("T")


class Share(NamedTuple):
    """The tokens of a step that belong to one group, and the numbers of their rows in the whole step."""

    spans: list[ScheduledTokens]
    rows: list[int]


class RequestGroups:
    """Runners with a common lock and the interface of one runner. The req_index of a request determines its group.
    decodes_apart: as in Runner."""

    decodes_apart = False

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._runners = runners
        self.cache = runners[0].cache
        self.weights = runners[0].weights
        self.multi_step = GroupedDecoder(self, runners)
        self._threads = ThreadPoolExecutor(len(runners), thread_name_prefix="bitnet-group")

    def group_of(self, span: ScheduledTokens) -> int:
        """Return the group of a request."""
        return span.req_index % len(self._runners)

    def together(self, tasks: dict[int, Callable[[Runner], T]]) -> dict[int, T]:
        """Call each task with the runner of its group, in threads if there are several. Raises the first error, after
        all have ended."""

        def run(group: int) -> T:
            runner = self._runners[group]
            assert runner.lock is not None
            with runner.lock:
                return tasks[group](runner)

        if len(tasks) == 1:
            return {group: run(group) for group in tasks}
        futures = {group: self._threads.submit(run, group) for group in tasks}
        try:
            wait(futures.values())
        except BaseException:  # such as an interrupt, while the threads still use their buffers
            wait(futures.values())
            raise
        return {group: future.result() for group, future in futures.items()}

    def forward(
        self, scheduled: Sequence[ScheduledTokens], wanted: Sequence[int], chunk: int
    ) -> npt.NDArray[np.float32]:
        """See Runner; `scheduled` are tokens of one request."""
        group = self.group_of(scheduled[0])
        logits: dict[int, npt.NDArray[np.float32]] = self.together(
            {group: lambda runner: runner.forward(scheduled, wanted, chunk)}
        )
        return logits[group]

    def prompt_step(
        self,
        scheduled: Sequence[ScheduledTokens],
        wanted: Sequence[int],
        logits_requests: Sequence[LogitsRequest],
        chunk: int,
        columns: int = 0,
    ) -> Iterator[TopLogits]:
        """See Runner."""
        shares = self.divided(scheduled)
        places = {row: (group, at) for group, share in shares.items() for at, row in enumerate(share.rows)}
        rows: dict[int, list[int]] = {group: [] for group in shares}
        asked: dict[int, list[LogitsRequest]] = {group: [] for group in shares}
        for row, logits_request in zip(wanted, logits_requests, strict=True):
            group, place = places[row]
            rows[group].append(place)
            asked[group].append(logits_request)

        def task(group: int) -> Callable[[Runner], Iterator[TopLogits]]:
            spans = shares[group].spans
            return lambda runner: runner.prompt_step(spans, rows[group], asked[group], chunk, columns)

        steps = self.together({group: task(group) for group in shares})
        return (next(steps[places[row][0]]) for row in wanted)

    def hidden_step(
        self, scheduled: Sequence[ScheduledTokens], wanted: Sequence[int], chunk: int
    ) -> npt.NDArray[np.float32]:
        """See Runner; one group computes all rows."""
        hidden: dict[int, npt.NDArray[np.float32]] = self.together(
            {0: lambda runner: runner.hidden_step(scheduled, wanted, chunk)}
        )
        return hidden[0]

    def decode_step(self, rows: Sequence[ScheduledTokens], logits_requests: Sequence[LogitsRequest]) -> list[TopLogits]:
        """See Runner."""
        shares = self.divided(rows)

        def task(share: Share) -> Callable[[Runner], list[TopLogits]]:
            asked = [logits_requests[row] for row in share.rows]
            return lambda runner: runner.decode_step(share.spans, asked)

        found: dict[int, TopLogits] = {}
        for group, steps in self.together({group: task(share) for group, share in shares.items()}).items():
            found |= zip(shares[group].rows, steps, strict=True)
        return [found[row] for row in range(len(rows))]

    def divided(self, scheduled: Sequence[ScheduledTokens]) -> dict[int, Share]:
        """Divide the tokens of a step among the groups."""
        shares: dict[int, Share] = {}
        row = 0
        for span in scheduled:
            end = row + len(span.tokens)
            if span.tokens:  # empty if the step had no rows left for the request
                share = shares.setdefault(self.group_of(span), Share([], []))
                share.spans.append(span)
                share.rows.extend(range(row, end))
            row = end
        return shares

    def recordings(self) -> dict[str, RecordedLaunches]:
        """See Runner; if several groups recorded the same step, one of the recordings is returned."""
        found: dict[str, RecordedLaunches] = {}
        for runner in self._runners:
            found |= runner.recordings()
        return found

    def forget(self) -> None:
        """Drop the decode steps of every group, see MultiStepDecoder."""
        for runner in self._runners:
            runner.multi_step.forget()

    def drop_scratch(self) -> bool:
        """See Runner."""
        dropped = [runner.drop_scratch() for runner in self._runners]
        return any(dropped)

    def free(self) -> None:
        """See Runner."""
        self._threads.shutdown()
        for runner in self._runners:
            runner.free()


_MOST_READS = 2
"""Readbacks that a device may have pending."""


class GroupedDecoder:
    """The multi-step decoders of all groups, with the interface of one.

    If the devices are peers, all steps are queued at once, alternating between the groups, so that each device has work
    while another one computes for the same group. Other devices pass each step on through host memory, and no step is
    queued ahead.
    """

    def __init__(self, groups: RequestGroups, runners: Sequence[Runner]) -> None:
        self._groups = groups
        self._decoders = [runner.multi_step for runner in runners]
        self._direct = all(runner.direct for runner in runners)
        few = len(runners) <= _MOST_READS
        self.can_run_ahead = self._direct and few and all(decoder.can_run_ahead for decoder in self._decoders)

    @property
    def in_flight(self) -> StepsInFlight | None:
        """The queued steps of any group, None if there are none."""
        return next((decoder.in_flight for decoder in self._decoders if decoder.in_flight), None)

    def queued(self, rows: Sequence[ScheduledTokens]) -> int:
        """Number of tokens of each of these rows that are in flight; 0 if one of the rows is not."""
        shares = self._groups.divided(rows)
        return min((self._decoders[group].queued(share.spans) for group, share in shares.items()), default=0)

    def forget(self) -> None:
        """See MultiStepDecoder."""
        self._groups.forget()

    def decode(
        self,
        rows: Sequence[ScheduledTokens],
        count: int,
        ahead: int = 0,
        continuing: Sequence[ScheduledTokens] = (),
    ) -> npt.NDArray[np.int32]:
        """Decode `count` greedy tokens after each row, see MultiStepDecoder."""
        shares = self._groups.divided(rows)
        parts = self._decode(shares, count, ahead, continuing) if self._direct else self._in_threads(shares, count)
        tokens = np.empty((len(rows), count), np.int32)
        for group, part in parts.items():
            tokens[shares[group].rows] = part
        return tokens

    def _in_threads(self, shares: dict[int, Share], count: int) -> dict[int, npt.NDArray[np.int32]]:
        def task(share: Share) -> Callable[[Runner], npt.NDArray[np.int32]]:
            return lambda runner: runner.multi_step.decode(share.spans, count)

        return self._groups.together({group: task(share) for group, share in shares.items()})

    def _decode(
        self, shares: dict[int, Share], count: int, ahead: int, continuing: Sequence[ScheduledTokens]
    ) -> dict[int, npt.NDArray[np.int32]]:
        decoders = {group: self._decoders[group] for group in shares}
        if not all(decoders[group].queued(share.spans) for group, share in shares.items()):
            for decoder in decoders.values():
                if decoder.in_flight:  # queued for this group alone
                    decoder.forget()
        taken = {group: decoders[group].take(share.spans) for group, share in shares.items()}
        steps = {group: queued for group, (_, queued) in taken.items() if queued}
        new = {group: list(places.values()) for group, (places, queued) in taken.items() if not queued}
        steps |= self._read_later(self._queue(new, count), count)
        following = self._groups.divided(continuing) if ahead else {}
        if not all(decoders[group].fits_ring(share.spans) for group, share in following.items()):
            following = {}
        further = {group: [taken[group][0][row] for row in share.spans] for group, share in following.items()}
        firsts = self._queue(further, ahead)
        tokens = {group: decoder.read(taken[group][0], steps[group]) for group, decoder in decoders.items()}
        for group, coming in self._read_later(firsts, ahead).items():
            decoders[group].in_flight = coming
        return tokens

    def _queue(self, buffer_rows: dict[int, list[int]], count: int) -> dict[int, int]:
        """Queue steps of the groups in turn; returns the column of each group's token ring for the first tokens."""
        firsts = {group: self._decoders[group].prepare(places, count) for group, places in buffer_rows.items()}
        for _ in range(count):
            for group in firsts:
                self._decoders[group].replay(1)
        return firsts

    def _read_later(self, firsts: dict[int, int], count: int) -> dict[int, StepsInFlight]:
        return {group: self._decoders[group].steps(first, count) for group, first in firsts.items()}
