"""The scheduler: admission, chunked prefill, multi-step greedy decoding, preemption.

A step either mixes prompt chunks with one row of every decoding request, or, when no prompt is pending, replays a
recorded decode step (iteration-level scheduling of Orca, Yu et al. 2022, with the preemption of PagedAttention, Kwon et
al. 2023). On devices on which mixed steps are slow, steps of prompts and of decoding requests alternate. A failure
while a token is sampled ends that request only.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

from bitnet_core.engine.counters import zeros
from bitnet_core.engine.error_log import ErrorLog
from bitnet_core.engine.kv_cache.block_pool import BlockPool
from bitnet_core.engine.request.new_request import check_length
from bitnet_core.engine.request.request import FinishReason, Request
from bitnet_core.engine.request.sample_rows import SampleRow, apply_all, order_rows
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.run.request_groups import RequestGroups
from bitnet_core.engine.schedule.admission import Admission
from bitnet_core.engine.schedule.multi_step import MultiStepScheduler, last_rows
from bitnet_core.engine.schedule.prompt_steps import SHARED_SECONDS, PromptScheduler
from bitnet_core.engine.schedule.results import RequestOutput, StepResults
from bitnet_core.engine.schedule.speculative import SpeculativeScheduler


class Scheduler:
    """The scheduler of one model runner. A step that a device error interrupts changes nothing and can be retried.

    stream_interval: as in StepCountPolicy. admission: the requests with their slots and blocks, its lists being
    waiting and running. counts: the counters of engine.counters, the
    evictions of discarded block pools, and the tokens of decode-only steps ("decoded_tokens"). seconds: of steps with
    prompts ("prefill") and without ("decode"). errors: those that ended requests, and those that the engine adds.
    recurrent: layers keep a state per request, so that a prefix can be reused only up to a state checkpoint, and a
    failed step may have advanced the states.
    """

    def __init__(self, context: int, chunk: int, stream_interval: float = 0.1, *, recurrent: bool = False) -> None:
        self.recurrent = recurrent
        self.context = context
        self.chunk = chunk
        self.counts = zeros()
        self.errors = ErrorLog()
        self.admission = Admission(context, self.counts, recurrent=recurrent)
        self.waiting = self.admission.waiting
        self.running = self.admission.running
        self.seconds = {"prefill": 0.0, "decode": 0.0}
        self._results = StepResults(self.admission, self.errors)
        self.multi_step = MultiStepScheduler(self.admission, self._results, stream_interval)
        self.speculative = SpeculativeScheduler(self.admission, self._results, self.counts)
        self.prompts = PromptScheduler(self.admission, self._results)
        self._prompt_seconds = 0.0  # of prompt-only steps since the last decode step
        self._aborted: deque[Request] = deque()

    def attach(self, runner: Runner | RequestGroups, blocks: BlockPool) -> None:
        """Use a new runner and an empty cache; running requests go back to the queue and are recomputed."""
        self._runner = runner
        self.admission.attach(runner.cache, blocks)

    def detach(self) -> None:
        """Drop the runner and the cache."""
        self.prompts.forget()
        self.speculative.in_flight = None
        self.admission.detach()

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises UsageError as check_length."""
        self.check_length(request.tokens)
        self.waiting.append(request)

    def check_length(self, tokens: Sequence[int]) -> None:
        """Raise UsageError if a prompt is empty or leaves no token for the answer."""
        check_length(tokens, self.admission.max_model_len)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns [] when there is nothing to do."""
        while self._aborted:
            self.finish_request(self._aborted.popleft())
        queued = self.multi_step.queued(self._runner) if self._runner.multi_step.in_flight else 0
        verifying = self.speculative.in_flight is not None and self.speculative.awaited()
        if (
            self.waiting and not queued and not verifying
        ):  # requests are admitted only after the steps in flight are read
            self._admit()
        done: list[RequestOutput] = []
        if self.running:
            requests = self.running.copy()
            began = time.perf_counter()
            try:
                done = self._verified() if verifying else self._advance(queued)
            except Exception:
                self._start_over()
                raise
            self._add_time(requests, time.perf_counter() - began, done)
        return self._results.take_left() + done if self._results.left else done

    def _add_time(self, requests: list[Request], seconds: float, done: list[RequestOutput]) -> None:
        """Add the duration of a step to its requests and to the totals."""
        prompts = False
        for request in requests:
            if request.prefilling:
                prompts = True
                request.prefill_seconds += seconds
                request.prefilling = len(request.tokens) == request.prompt_tokens
            else:
                request.decode_seconds += seconds
        self.seconds["prefill" if prompts else "decode"] += seconds
        if not prompts:
            for output in done:
                self.counts["decoded_tokens"] += len(output.tokens)

    def _verified(self) -> list[RequestOutput]:
        """Read a step with draft tokens that is in flight."""
        assert isinstance(self._runner, Runner)
        assert self.speculative.drafter is not None
        return self.speculative.read(self._runner, self.speculative.drafter)

    def _advance(self, queued: int) -> list[RequestOutput]:
        greedy = True
        for request in self.running:
            if request.computed + 1 < len(request.tokens) or request.scored:
                return self._with_prompts()
            greedy = greedy and request.greedy
        if self.prompts.in_flight and self.prompts.awaited():
            return self.prompts.read()
        most = math.inf  # maximum tokens of each request before draft tokens should be verified
        speculative = self.speculative
        if speculative.drafter is not None:
            assert isinstance(self._runner, Runner)  # draft tokens are verified on one device only
            most = speculative.policy.until_next(self.running, speculative.rows)
            if most <= 0 and not queued:
                if (done := speculative.step(self._runner, speculative.drafter)) is not None:
                    return done
                most = speculative.policy.until_next(self.running, speculative.rows)
        began = time.perf_counter()
        running = self.running
        done = self.multi_step.step(self._runner, running, queued, max(1, most)) if greedy else self._sampled(running)
        if speculative.drafter is not None:
            speculative.stepped(done, time.perf_counter() - began)
        return done

    def _start_over(self) -> None:
        """Preempt every request of a recurrent model: a failed step may have advanced their states."""
        for request in self.running[::-1] if self.recurrent else []:
            self.admission.preempt(request)

    def fail_all(self, error: Exception) -> list[RequestOutput]:
        """End every request with an error that no request caused."""
        outputs = [self._results.fail(request, error) for request in (*self.running, *self.waiting)]
        return self._results.take_left() + outputs

    def fail_request(self, request: Request, error: Exception) -> RequestOutput:
        """End a request with an error."""
        return self._results.fail(request, error)

    def finish_request(self, request: Request, reason: FinishReason = "cancelled") -> None:
        """End a request now; its full blocks stay in the cache for reuse."""
        self.admission.finish(request, reason)

    def abort_request(self, request: Request) -> None:
        """End a request before the next step; for finalizers, which may run in any thread at any time."""
        self._aborted.append(request)

    def _admit(self) -> None:
        before = len(self.running)
        self._results.left += [RequestOutput(request, ()) for request in self.admission.admit()]
        if len(self.running) > before:
            self.multi_step.restart(self._runner)

    def _with_prompts(self) -> list[RequestOutput]:
        """Run a step while prompts are pending."""
        self.admission.reserve(1)
        runner, prompts = self._runner, self.prompts
        if not runner.decodes_apart:
            return prompts.step(runner, self.running, self.chunk)
        decoding: list[Request] = []
        pending: list[Request] = []
        for request in self.running:
            if request.pending > 1 or request.scored:
                pending.append(request)
            elif request.pending:  # else its first token is in flight
                decoding.append(request)
        turn = bool(decoding) and self._prompt_seconds > SHARED_SECONDS
        greedy = all(request.greedy for request in decoding)
        if turn and pending and greedy and isinstance(runner, Runner) and runner.multi_step.can_run_ahead:
            return self._turn(runner, decoding, pending)
        if (turn or not pending) and prompts.awaited():
            return prompts.read()
        if turn or not pending:
            self._prompt_seconds = 0.0
            return self.multi_step.step(runner, decoding, 0, 1) if greedy else self._sampled(decoding)
        began = time.perf_counter()
        done = prompts.step(runner, pending, self.chunk)
        self._prompt_seconds = self._prompt_seconds + time.perf_counter() - began if decoding else 0.0
        return done

    def _turn(self, runner: Runner, decoding: list[Request], pending: list[Request]) -> list[RequestOutput]:
        """Queue a step of the decoding requests and one with prompts, before the tokens of either are read."""
        self._prompt_seconds = 0.0
        read = self.multi_step.queue_one(runner, decoding)
        if self.prompts.awaited():
            self._results.left += self.prompts.read()
        self._results.left += self.prompts.step(runner, pending, self.chunk)
        return read()

    def _sampled(self, requests: list[Request]) -> list[RequestOutput]:
        """Decode one token of all running requests, or of these for which blocks are reserved."""
        self.admission.reserve(1)
        rows, logits_requests = order_rows([SampleRow(request) for request in requests])
        apply_all(rows, self._runner.decode_step(last_rows(row.request for row in rows), logits_requests))
        return [self._results.process_rows(row.request, 1, [row]) for row in rows]
