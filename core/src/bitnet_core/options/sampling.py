"""The options of sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bitnet_hal.errors import UsageError

from bitnet_core.options.fields import SAMPLING, check_options, option


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The parameters by which tokens are chosen.

    Applied in this order, each on the result of the one before (as in the transformers library): repetition penalty,
    presence and frequency penalty, logit bias, top-n-sigma, temperature, top-k, top-p, min-p. Top-n-sigma needs all
    logits of a token. Presence and frequency penalties are those of OpenAI's API reference. Raises UsageError for a
    value of a wrong type or out of range.
    """

    temperature: float = option(
        0.0,
        at_least=0,
        gguf="temp",
        group=SAMPLING,
        help="Divide the logits by this; 0 takes the likeliest token.",
    )
    top_k: int = option(
        0, at_least=0, metavar="K", gguf="top_k", group=SAMPLING, help="Sample from the K likeliest tokens; 0 for all."
    )
    top_p: float = option(
        1.0,
        at_least=0,
        at_most=1,
        metavar="P",
        gguf="top_p",
        group=SAMPLING,
        help="Sample from the likeliest tokens whose probabilities add up to this.",
    )
    min_p: float = option(
        0.0,
        at_least=0,
        at_most=1,
        metavar="P",
        gguf="min_p",
        group=SAMPLING,
        help="Exclude tokens less likely than this fraction of the likeliest.",
    )
    top_n_sigma: float = option(
        0.0,
        at_least=-1,
        metavar="N",
        group=SAMPLING,
        help="Exclude tokens whose logit is more than N standard deviations below the largest; 0 or -1 for none.",
    )
    repetition_penalty: float = option(
        1.0,
        at_least=0.01,
        at_most=100,
        gguf="penalty_repeat",
        aliases=("repeat_penalty",),
        group=SAMPLING,
        help="Divide the logits of tokens in the prompt and the text by this; 1 for none.",
    )
    presence_penalty: float = option(
        0.0,
        at_least=-2,
        at_most=2,
        group=SAMPLING,
        help="Subtract this from the logits of tokens in the text.",
    )
    frequency_penalty: float = option(
        0.0,
        at_least=-2,
        at_most=2,
        group=SAMPLING,
        help="Subtract this from the logit of a token for each time it is in the text.",
    )
    logit_bias: Mapping[int, float] = option(
        factory=dict, flags=(), help="Token ids, and numbers to add to their logits; -inf forbids a token."
    )
    logprobs: int | None = option(
        None,
        at_least=0,
        at_most=20,
        flags=(),
        help="Number of likeliest tokens whose log probabilities are returned beside the chosen one's.",
    )
    seed: int | None = option(None, at_least=0, group=SAMPLING, help="Same seed, same text. Default: a random one.")

    def __post_init__(self) -> None:
        check_options(self)
        if any((abs(bias) > 1e30 and bias != float("-inf")) or bias != bias for bias in self.logit_bias.values()):
            raise UsageError("logit_bias values must be numbers up to 1e30, or -inf")

    @property
    def penalized(self) -> bool:
        """Previous tokens change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def raw(self) -> bool:
        """The model's logits are used unchanged."""
        return not self.penalized and not self.logit_bias

    @property
    def needs_all_logits(self) -> bool:
        """A list of the largest logits is not enough: their standard deviation counts."""
        return self.top_n_sigma > 0 and self.temperature > 0

    @property
    def greedy(self) -> bool:
        """The device can choose alone: the largest raw logit."""
        return self.temperature == 0 and self.raw and self.logprobs is None

    @property
    def lowering(self) -> bool:
        """No logit is ever raised."""
        lowered = self.repetition_penalty >= 1 and self.presence_penalty >= 0 and self.frequency_penalty >= 0
        return lowered and all(bias <= 0 for bias in self.logit_bias.values())
