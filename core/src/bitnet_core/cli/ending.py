"""Messages about a text that a limit has cut off, which could look complete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bitnet_hal.errors import CutOffError

if TYPE_CHECKING:
    from bitnet_core.api import Generation, Model


def limit_reached(result: Generation, model: Model, max_tokens: int) -> str:
    """Return a message about the limit that cut the text off, "" if none did."""
    if result.finish_reason != "length":
        return ""
    if len(result.tokens) >= max_tokens:
        return f"stopped at the limit of {max_tokens} tokens (-n)"
    return f"stopped at the end of the context of {model.engine.max_model_len} tokens (--context)"


def check_whole_json(result: Generation, limit: str) -> None:
    """Raise CutOffError if the text is incomplete JSON. limit: the message about the limit that ended it, or ""."""
    try:
        if not limit:
            json.loads(result.text)
            return
    except (ValueError, RecursionError):
        limit = "it was ended by a stop string"
    raise CutOffError(f"the JSON is incomplete: {limit}")
