"""The results of a step: the tokens of its requests, and the requests that ended with an error."""

from __future__ import annotations

from typing import NamedTuple

from bitnet_core.engine.error_log import ErrorLog
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.request.sample_rows import SampleRow
from bitnet_core.engine.schedule.admission import Admission


class RequestOutput(NamedTuple):
    """New tokens of one request; request.finish_reason is set if it has ended."""

    request: Request
    tokens: tuple[int, ...]


class StepResults:
    """Applies sampled rows and errors to requests. errors: as in Scheduler. left: outputs that the next step returns
    with its own."""

    def __init__(self, admission: Admission, errors: ErrorLog) -> None:
        self._admission = admission
        self._errors = errors
        self.left: list[RequestOutput] = []

    def take_left(self) -> list[RequestOutput]:
        """Return the outputs of `left`, and clear it."""
        left = self.left
        self.left = []
        return left

    def process_rows(self, request: Request, count: int, rows: list[SampleRow]) -> RequestOutput:
        """Record `count` computed rows, and append the token that was sampled from the last of `rows`."""
        failed = next((row.error for row in rows if row.error is not None), None)
        if failed is not None:
            return self.fail(request, failed)
        if request.scored and count == request.pending:
            request.scored = None
        token = rows[-1].token if rows else None
        tokens = [] if token is None else [token]
        try:
            return RequestOutput(request, self._admission.accept_tokens(request, count, tokens))
        except Exception as exc:  # noqa: BLE001 - a constraint's error must not end the other requests
            return self.fail(request, exc)

    def fail(self, request: Request, error: Exception, tokens: tuple[int, ...] = ()) -> RequestOutput:
        """End a request with an error. tokens: those that the step generated before."""
        self._errors.add(error)
        request.error = error
        self._admission.finish(request, "error")
        return RequestOutput(request, tokens)
