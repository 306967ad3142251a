"""The messages between a server and the process of a device: length-prefixed pickles.

Both ends are processes of one program, so messages are trusted and not validated.
"""

from __future__ import annotations

import copy
import logging
import pickle
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, NamedTuple

from bitnet_hal.errors import BitnetError

from bitnet_core.engine.request.prompt_scores import PromptScores
from bitnet_core.engine.request.request import FinishReason, Request
from bitnet_core.engine.sampling.logprobs import TokenScore
from bitnet_core.engine.serving import ServingEngine

_LENGTH = struct.Struct("<Q")


class Channel:
    """A pair of pipes. One thread may receive, any thread may send."""

    def __init__(self, receiving: IO[bytes], sending: IO[bytes]) -> None:
        self._receiving = receiving
        self._sending = sending
        self._lock = threading.Lock()

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message. Raises OSError or ValueError if the other end is gone."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._sending.write(_LENGTH.pack(len(body)) + body)
            self._sending.flush()

    def close(self) -> None:
        """Close both pipes."""
        with suppress(OSError), self._lock:
            self._receiving.close()
            self._sending.close()

    def receive(self) -> tuple[Any, ...] | None:
        """Wait for the next message; returns None when the other end has closed its pipe."""
        head = self._receiving.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        body = self._receiving.read(length)
        message: tuple[Any, ...] | None = None
        if len(body) == length:
            message = pickle.loads(body)  # noqa: S301 - sent by a process of this program
        return message


class Progress(NamedTuple):
    """The fields of a request that change when it starts and when it ends."""

    finish_reason: FinishReason | None
    error: Exception | None
    prefilling: bool
    cached_tokens: int
    admitted: float | None
    prefill_seconds: float
    decode_seconds: float
    draft_tokens: int
    accepted_tokens: int

    @classmethod
    def of(cls, request: Request) -> Progress:
        """Return the fields of a request."""
        return cls(
            request.finish_reason,
            None if request.error is None else sendable(request.error),
            request.prefilling,
            request.cached_tokens,
            request.admitted,
            request.prefill_seconds,
            request.decode_seconds,
            request.draft_tokens,
            request.accepted_tokens,
        )

    def apply(self, request: Request) -> None:
        """Set the fields of a request."""
        for name, value in zip(self._fields, self, strict=True):
            setattr(request, name, value)


Output = tuple[int, tuple[int, ...], int, tuple[TokenScore, ...], Progress | None]
"""The number of a request, its new tokens, `drawn` and scores for Sampler.go_on, and its progress if it starts or ends.
A plain tuple: each step sends one per request, and a class takes four times as long to pickle."""


class Snapshot(NamedTuple):
    """Figures of an engine that are not sent after every step, named as the methods that return them."""

    memory: dict[str, int | float]
    launches: dict[str, Counter[str]]
    errors: Counter[str]
    sequences: int
    max_model_len: int
    layers: dict[str, int]

    @classmethod
    def of(cls, engine: ServingEngine) -> Snapshot:
        """Read the figures of an engine."""
        launches = {device: Counter(counts) for device, counts in engine.kernel_launches_by_device.items()}
        errors = engine.scheduler.errors.counts
        sizes = engine.sequences, engine.max_model_len, engine.layers_by_device
        return cls(engine.memory(), launches, errors, *sizes)


def outgoing(request: Request) -> Request:
    """Return a copy of a request for another process. A `scored` that only works in this process is replaced by a
    placeholder, and the scores so far are left out."""
    sent = copy.copy(request)
    if isinstance(request.scored, PromptScores):
        sent.scored = request.scored.empty()
    elif request.scored is not None:
        sent.scored = _somewhere_else
    sent.sampler = copy.copy(request.sampler)
    sent.sampler.scores = []
    sent.computed = 0
    sent.blocks = []
    sent.req_index = -1
    return sent


def _somewhere_else(position: int, logits: Any) -> None:
    raise NotImplementedError("the process that made the request receives its logits")


def sendable(error: BaseException) -> Exception:
    """Return the error itself if it can be pickled, else one with its text."""
    try:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled by this process
    except Exception:  # noqa: BLE001 - an error of a plugin may be anything
        again = None
    if isinstance(error, Exception) and type(again) is type(error):
        return error
    return BitnetError(f"{type(error).__name__}: {error}")


class _Forwarded(logging.Handler):
    """A log handler that sends records to the other end."""

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(("log", record.name, record.levelno, record.getMessage()))
        except Exception:  # noqa: BLE001 - a log handler must not raise
            self.handleError(record)


def forward_logs(send: Callable[[tuple[Any, ...]], None], levels: Mapping[str, int]) -> None:
    """Send log records to the other end. levels: log level by logger name."""
    logging.getLogger().addHandler(_Forwarded(send))
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def log_levels() -> dict[str, int]:
    """Return the levels of the root logger ("") and of bitnet's loggers, by name."""
    loggers = [entry for entry in logging.root.manager.loggerDict.values() if isinstance(entry, logging.Logger)]
    own = {logger.name: logger.level for logger in loggers if logger.level and logger.name.startswith("bitnet")}
    return {"": logging.root.level, **own}
