"""Apply the results of a step: append tokens, end requests, publish full blocks for reuse, update counters."""

from __future__ import annotations

from typing import NamedTuple

from bitnet_hal.kernels.catalogue import KV_BLOCK

from bitnet_core.engine.error_log import ErrorLog
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.request.sample_rows import SampleRow
from bitnet_core.engine.schedule.admission import Admission
from bitnet_core.engine.schedule.state_positions import keep_state


class RequestOutput(NamedTuple):
    """New tokens of one request; request.finish_reason says whether it has ended."""

    request: Request
    tokens: tuple[int, ...]


class StepResults:
    """Bookkeeping of step results. counts, seconds, errors: as in Scheduler. left: outputs that the next step
    returns beside its own."""

    def __init__(self, admission: Admission, counts: dict[str, int], errors: ErrorLog) -> None:
        self._admission = admission
        self._counts = counts
        self._errors = errors
        self.seconds: dict[str, float] = {"prefill": 0.0, "decode": 0.0}
        self.left: list[RequestOutput] = []

    def take_left(self) -> list[RequestOutput]:
        """Return the outputs of `left`, once."""
        left = self.left
        self.left = []
        return left

    def accept_tokens(self, request: Request, count: int, tokens: list[int]) -> RequestOutput:
        """Add `count` computed rows and their tokens, up to the request's end."""
        before = request.computed
        tokens_left = self._admission.tokens_left(request)
        if request.constraint is None and len(tokens) < tokens_left and request.stop_token_ids.isdisjoint(tokens):
            accepted = tokens
            request.tokens += accepted
        else:
            accepted = _up_to_the_end(request, tokens, tokens_left)
        request.computed = min(before + count, len(request.tokens))
        if not request.max_tokens and not request.pending:
            request.finish_reason = "length"
        self._counts["generated_tokens"] += len(accepted)
        if request.computed // KV_BLOCK > before // KV_BLOCK:
            self._publish_blocks(request, before // KV_BLOCK)
        if self._admission.recurrent and request.computed == before + count > before:  # else states are of other rows
            keep_state(self._admission.checkpoints, request, len(self._admission.running))
        if request.finish_reason:
            self._admission.finish(request, request.finish_reason)
        return RequestOutput(request, tuple(accepted))

    def _publish_blocks(self, request: Request, first: int) -> None:
        """Let later requests reuse the full blocks from the request's block number `first` on."""
        block_hashes = request.block_hashes(request.computed)
        for index in range(first, len(block_hashes)):
            self._admission.blocks.register(request.blocks[index], block_hashes[index])

    def process_rows(self, request: Request, count: int, rows: list[SampleRow]) -> RequestOutput:
        """Add `count` computed rows, and the token that was sampled from the last of `rows`."""
        failed = next((row.error for row in rows if row.error is not None), None)
        if failed is not None:
            return self.fail(request, failed)
        if request.scored and count == request.pending:
            request.scored = None
        token = rows[-1].token if rows else None
        try:
            return self.accept_tokens(request, count, [] if token is None else [token])
        except Exception as exc:  # noqa: BLE001 - a constraint's error must not end the other requests
            return self.fail(request, exc)

    def fail(self, request: Request, error: Exception, tokens: tuple[int, ...] = ()) -> RequestOutput:
        """End a request with an error, after these tokens of the step."""
        self._errors.add(error)
        request.error = error
        self._admission.finish(request, "error")
        return RequestOutput(request, tokens)

    def add_time(self, requests: list[Request], seconds: float, done: list[RequestOutput]) -> None:
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
                self._counts["decoded_tokens"] += len(output.tokens)


def _up_to_the_end(request: Request, tokens: list[int], tokens_left: int) -> list[int]:
    """Append tokens one by one; returns those before the request's end."""
    accepted: list[int] = []
    for token in tokens:
        if token in request.stop_token_ids:
            request.finish_reason = "stop"
            break
        accepted.append(token)
        request.tokens.append(token)
        if request.constraint is not None and not request.constraint.accept(token):
            request.finish_reason = "stop"
            break
        if len(accepted) >= tokens_left:
            request.finish_reason = "length"
            break
    return accepted
