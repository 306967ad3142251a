"""Create a request for an engine, and validate its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import TypedDict

from bitnet_hal.errors import UsageError

from bitnet_core.engine.request.request import Request, Scored
from bitnet_core.engine.sampling.constraint import Constraint
from bitnet_core.engine.sampling.sampler import Sampler
from bitnet_core.model.config import ModelConfig
from bitnet_core.options.sampling import SamplingParams


class RequestOptions(TypedDict, total=False):
    """Options of a request besides those of sampling, with the defaults of `new_request`."""

    max_tokens: int
    stop_token_ids: Iterable[int]
    constraint: Constraint | None
    scored: Scored | None


def new_request(
    config: ModelConfig,
    max_model_len: int,
    tokens: Iterable[int],
    sampling: SamplingParams | None = None,
    *,
    max_tokens: int = 128,
    stop_token_ids: Iterable[int] = (),
    constraint: Constraint | None = None,
    scored: Scored | None = None,
) -> Request:
    """Create a request. scored: receives the logits after every prompt token; max_tokens may then be 0.

    Raises UsageError if the prompt is empty, too long, or contains tokens that the model does not have.
    """
    if config.pooling:
        raise UsageError("the model embeds texts and generates none: use Model.embed or `bitnet embed`")
    ids = integers("tokens", tokens)
    stops = frozenset(integers("stop_token_ids", stop_token_ids))
    (max_tokens,) = integers("max_tokens", [max_tokens])
    check_tokens(ids, config.vocab)
    if max_tokens < (scored is None):
        raise UsageError("max_tokens must be 1 or more")
    check_length(ids, max_model_len)
    sampler = Sampler(sampling or SamplingParams(), config.tokens, len(ids))
    return Request(ids, max_tokens, sampler, stops, constraint, scored)


def integers(name: str, numbers: Iterable[int]) -> list[int]:
    """Convert to ints. Raises UsageError if that fails: an error in a step would affect other requests. name: of the
    argument, for the message."""
    try:
        return list(map(index, numbers))
    except TypeError as exc:
        raise UsageError(f"{name} must be whole numbers: {exc}") from exc


def check_tokens(ids: Sequence[int], vocab: int) -> None:
    """Raise UsageError for a token that the model does not have."""
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        raise UsageError(f"a token id is outside 0..{vocab - 1}")


def check_length(tokens: Sequence[int], max_model_len: int) -> None:
    """Raise UsageError if a prompt is empty or leaves no token for the answer."""
    if not tokens:
        raise UsageError("the prompt is empty")
    if len(tokens) >= max_model_len:
        raise UsageError(f"the prompt has {len(tokens)} tokens, but the context holds {max_model_len} with the answer")
