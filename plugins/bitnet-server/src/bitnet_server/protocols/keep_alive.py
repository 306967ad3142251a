"""Ollama's field keep_alive: the time for which a model stays loaded after a request."""

from __future__ import annotations

import math
import re
from typing import Final

from bitnet_server.errors import ApiError

KeepAlive = float | str
"""Seconds, or a duration of Go such as "1h30m"; negative for ever, 0 to unload the model."""

_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER: Final = r"(\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})"
_PART: Final = re.compile(_NUMBER + "(" + "|".join(_SECONDS) + ")", re.ASCII)
_DURATION: Final = re.compile(rf"([+-]?)(?:{_NUMBER}|((?:{_PART.pattern})+))", re.ASCII)

_EVER: Final = 1e9
"""Seconds from which a model stays for ever, about 30 years."""


def seconds_of(given: KeepAlive | None) -> float | None:
    """Return the seconds of the field; inf for ever, None without one. Raises ApiError 400 if it is not a duration."""
    if given is None:
        return None
    seconds = _parsed(given) if isinstance(given, str) else given
    return math.inf if seconds < 0 or seconds >= _EVER else seconds


def _parsed(text: str) -> float:
    found = _DURATION.fullmatch(text) if len(text) <= 100 else None
    if found is None:
        raise ApiError(400, 'keep_alive must be seconds or a duration such as "5m"', param="keep_alive")
    parts = [(found[2], "s")] if found[2] else _PART.findall(found[3])
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return -seconds if found[1] == "-" else seconds
