"""Build generation requests from the fields of an HTTP request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bitnet_core.engine.output import StopFilter
from bitnet_core.engine.request.reasoning import Reasoning
from bitnet_core.engine.request.request import Scored
from bitnet_core.engine.sampling.constraint import Constraint
from bitnet_core.engine.sampling.defaults import SamplingDefaults
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.structured import Grammar
from bitnet_hal.errors import UsageError

from bitnet_server.errors import ApiError, too_long
from bitnet_server.output_format import param_of
from bitnet_server.random_hex import random_hex
from bitnet_server.request_state import GenerationRequest
from bitnet_server.schema import Common, given_numbers

if TYPE_CHECKING:  # it takes long to import: the server listens meanwhile
    from bitnet_core.api import Model

_GREEDY_BELOW = 1e-4
"""Temperatures under this choose the likeliest token: their quotients would overflow."""

RANDOM_SEED = -1
"""A request's seed that means a random one, as in llama-server and vLLM."""

_BANNED = -100.0
"""OpenAI's logit_bias of this much bans a token."""


def check_common(request: Common, model: Model) -> None:
    """Raise ApiError if fields contradict each other or the model."""
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise ApiError(400, "best_of must equal n", param="best_of", code="unsupported_value")
    if (request.n or 1) > min(128, model.engine.sequences):
        raise ApiError(400, f"n is at most {model.engine.sequences} here", param="n")
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options needs stream", param="stream_options")
    vocab = model.config.vocab
    for token in request.logit_bias or {}:
        if not (token.isascii() and token.isdigit() and len(token) < 20 and int(token) < vocab):
            raise ApiError(400, f"logit_bias names a token outside 0..{vocab - 1}", param="logit_bias")


def usual_temperature(defaults: SamplingDefaults) -> float:
    """Return the temperature of requests that state none: the model's own, else 1 as in OpenAI's API."""
    return defaults.values.temperature if defaults.origin else 1.0


def sampling_of(request: Common, defaults: SamplingDefaults, seed: int, logprobs: int | None) -> SamplingParams:
    """Return the sampling parameters of a request."""
    given = given_numbers(request)
    temperature = usual_temperature(defaults) if request.temperature is None else request.temperature
    if temperature < _GREEDY_BELOW or request.top_p == 0:
        temperature = 0.0
    top_k = given["top_k"]
    biases = {int(token): bias for token, bias in (request.logit_bias or {}).items()}
    given |= {"temperature": temperature, "top_k": None if top_k is None else max(top_k, 0), "seed": seed % (1 << 64)}
    return defaults.params(
        **given,
        logit_bias={token: bias if bias > _BANNED else float("-inf") for token, bias in biases.items()},
        logprobs=logprobs,
    )


def _check_lengths(prompts: Sequence[list[int]], limit: int) -> None:
    for prompt in prompts:
        if len(prompt) >= limit:
            raise too_long(limit, f"the prompt has {len(prompt)} tokens, but the context holds {limit} with the answer")


def generation_requests(
    request: Common,
    model: Model,
    prompts: Sequence[list[int]],
    max_tokens: int,
    *,
    logprobs: int | None = None,
    grammar: Grammar | None = None,
    scored: Callable[[int], Scored | None] = lambda index: None,
    reply: bool = False,
) -> list[GenerationRequest]:
    """Build the generation requests of every choice: prompts in their order, n of each.

    Choice i uses the seed plus i. reply: the text is a chat reply, which may begin with reasoning. Compiling a grammar
    may take a second. Raises ApiError if a prompt is too long or the grammar is refused.
    """
    _check_lengths(prompts, model.engine.max_model_len)
    drawn = request.seed is None or request.seed == RANDOM_SEED
    seed = int(random_hex(8), 16) >> 1 if drawn else request.seed or 0
    ends = frozenset() if request.ignore_eos else model.tokenizer.eos_ids
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    named = {token for stop in stops if (token := model.tokenizer.tag(stop)) is not None}
    tags = model.thinking_tags if reply else None
    generations = []
    for index in range(len(prompts) * (request.n or 1)):
        prompt = prompts[index // (request.n or 1)]
        try:
            constraint: Constraint | None = model.grammars.constraint(grammar) if grammar is not None else None
        except UsageError as exc:
            raise ApiError(400, str(exc), param=param_of(request)) from exc
        if reply:
            constraint = model.after_reasoning(prompt, constraint)
        generations.append(
            GenerationRequest(
                index=index,
                tokens=prompt,
                sampling=sampling_of(request, model.defaults, seed + index, logprobs),
                max_tokens=max_tokens,
                stop_token_ids=ends | named | frozenset(request.stop_token_ids or ()),
                stops=StopFilter(stops),
                constraint=constraint,
                scored=scored(index),
                reasoning=Reasoning(*tags, prompt) if tags else None,
            )
        )
    return generations
