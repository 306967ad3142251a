"""Formatting of sizes and counts for display."""

from __future__ import annotations


def size(nbytes: int) -> str:
    """Format bytes as KiB, MiB or GiB."""
    unit, name = next(((2**n, name) for n, name in ((30, "GiB"), (20, "MiB")) if nbytes >= 2**n), (2**10, "KiB"))
    return f"{nbytes / unit:.1f} {name}"


def count(number: int, noun: str) -> str:
    """Format a number of things: 1 file, 2 files."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
