"""Limits on untrusted JSON: depth and size, checked without recursion, and text without a UTF-8 form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def exceeds_limits(value: Any, depth: int, count: int) -> str:
    """Return a message if a value has more levels of lists and mappings than `depth`, or more values than `count`,
    else ""."""
    level, seen = [value], 0
    for _ in range(depth + 1):
        level = _values(level)
        seen += len(level)
        if seen > count:
            return f"hold more than {count} values"
        if not level:
            return ""
    return f"are nested more than {depth} levels deep"


def nesting(value: Any) -> int:
    """Return the number of levels of lists and mappings in a value that is within the limits."""
    level, depth = [value], 0
    while level := _values(level):
        depth += 1
    return depth


def _values(level: list[Any]) -> list[Any]:
    """Return the values in the lists and mappings of a level."""
    return [
        item
        for holder in level
        if isinstance(holder, Mapping | list | tuple)
        for item in (holder.values() if isinstance(holder, Mapping) else holder)
    ]


def has_lone_surrogate(text: str, value: Any) -> bool:
    """Return whether a string or key of a value parsed from JSON `text` has no UTF-8 form."""
    if not _SURROGATE.search(text):
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
