"""Read a text from a file or stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from bitnet_hal.errors import UsageError
from bitnet_hal.text_files import decoded

MAX_INPUT = 16 << 20
"""Maximum bytes of a text."""


def read_text(source: str) -> str:
    """Return the text of a file, or of stdin for "-", without a byte order mark and a line break at its end.

    Line breaks are of one character. Raises UsageError if the text is missing, too long or not UTF-8.
    """
    name = "stdin" if source == "-" else source
    try:
        if source == "-":
            raw = sys.stdin.buffer.read(MAX_INPUT + 1)
        else:
            with Path(source).open("rb") as file:
                raw = file.read(MAX_INPUT + 1)
    except OSError as exc:
        raise UsageError(f"{name} cannot be read: {exc.strerror or exc}") from exc
    if len(raw) > MAX_INPUT:
        raise UsageError(f"{name} is longer than {MAX_INPUT >> 20} MiB")
    try:
        return decoded(raw).replace("\r\n", "\n").removesuffix("\n")
    except ValueError as exc:
        raise UsageError(f"{name} {exc}") from exc
