"""Options of `run` and `chat` that depend on the model or on each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet_hal.errors import UsageError

from bitnet_core.cli.console import note
from bitnet_core.cli.options import ThinkingOptions
from bitnet_core.options.fields import options_of
from bitnet_core.options.sampling import SamplingParams

if TYPE_CHECKING:
    from bitnet_core.api import Model


def own_sampling(model: Model, given: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling options of the command line, with the model's own values for those that were not given.

    Prints a line if the model's own values make it sample.
    """
    own = model.defaults
    if "temperature" not in given and own.values.temperature > 0:
        note(f"{own.described()}: from {own.origin}; --temperature 0 takes the likeliest tokens")
    values = {name: getattr(own.values, name) for name, one in options_of(SamplingParams).items() if one.flags}
    return values | given


def refuse_for_raw(system: str | None, thinking: ThinkingOptions) -> None:
    """Raise UsageError for options of messages if a text is continued without the chat template."""
    given = {
        "--system": system,
        "--think and --no-think": thinking.enable_thinking,
        "--reasoning-budget": thinking.reasoning_budget,
    }
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} and --raw (--no-chat) exclude each other: without the chat template there are no messages"
            )
