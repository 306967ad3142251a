"""Integer division that rounds up."""

from __future__ import annotations


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below a."""
    return ceil_div(a, multiple) * multiple
