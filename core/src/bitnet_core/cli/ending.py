"""What is said where a limit ended a text: a text that is cut off looks complete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bitnet_hal.errors import CutOffError

if TYPE_CHECKING:
    from bitnet_core.api import Generation, Model


def limit_reached(result: Generation, model: Model, max_tokens: int) -> str:
    """The limit that ended the text; "" where none did."""
    if result.finish_reason != "length":
        return ""
    if len(result.tokens) >= max_tokens:
        return f"stopped at the limit of {max_tokens} tokens (-n)"
    return f"stopped at the end of the context of {model.engine.max_model_len} tokens (--context)"


def check_whole_json(result: Generation, limit: str) -> None:
    """CutOffError for a text under a schema that is not whole. limit: what ended it, "" if nothing did."""
    try:
        if not limit:
            json.loads(result.text)
            return
    except (ValueError, RecursionError):
        limit = "it was ended by a stop string"
    raise CutOffError(f"the JSON is not whole: {limit}")
