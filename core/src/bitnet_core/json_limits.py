"""Limits on the depth and size of untrusted lists and mappings, checked without recursion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def exceeds_limits(value: Any, depth: int, count: int) -> str:
    """Return the fault of a value with more levels of lists and mappings than `depth`, or more values than `count`;
    else ""."""
    level, seen = [value], 0
    for _ in range(depth + 1):
        level = [
            item
            for holder in level
            if isinstance(holder, Mapping | list | tuple)
            for item in (holder.values() if isinstance(holder, Mapping) else holder)
        ]
        seen += len(level)
        if seen > count:
            return f"hold more than {count} values"
        if not level:
            return ""
    return f"are nested more than {depth} levels deep"
