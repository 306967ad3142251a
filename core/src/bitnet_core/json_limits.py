"""How deep and how large a value of lists and mappings is, found without recursion: it is a stranger's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def exceeds_limits(value: Any, depth: int, count: int) -> str:
    """What is wrong with a value that has more levels of lists and mappings than `depth`, or more values than `count`;
    "" if it has not."""
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
    return f"are nested more than {depth} deep"
