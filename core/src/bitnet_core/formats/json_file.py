"""JSON files of model folders, read with bounded size and depth."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bitnet_hal.text_files import decoded

from bitnet_core.errors import ModelError
from bitnet_core.json_limits import has_lone_surrogate

MAX_BYTES = 1 << 24
LFS_POINTER = b"version https://git-lfs"
"""Start of the text that Git leaves in place of a large file if Git LFS is not installed."""
LFS_MESSAGE = "is a Git LFS pointer, not the file itself; get that with `git lfs pull`, or `bitnet pull`"


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Return the file's text. Raises ModelError if it cannot be read, is longer than `limit` bytes or is not UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(
                min(os.fstat(file.fileno()).st_size, limit) + 1
            )  # read() allocates the size that it is given
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise ModelError(f"{path}: larger than the limit of {limit} bytes")
    if data.startswith(LFS_POINTER):
        raise ModelError(f"{path}: {LFS_MESSAGE}")
    try:
        return decoded(data)
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from error


def parse_object(path: Path, text: str) -> dict[str, Any]:
    """Parse the JSON object in `text`.

    Raises ModelError for anything else, for a key that appears twice, and for text that is not Unicode.
    """
    value = _parsed(path, text)
    if not isinstance(value, dict):
        raise ModelError(f"{path}: does not hold a JSON object")
    return value


def _parsed(path: Path, text: str) -> Any:

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key appears twice")
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ModelError(f"{path}: is not valid JSON: {reason}; get the file again") from error
    if has_lone_surrogate(text, value):
        raise ModelError(f"{path}: holds half a character (a lone surrogate, such as \\ud800); get the file again")
    return value


def read_object(path: Path, limit: int = MAX_BYTES) -> dict[str, Any]:
    """Read the JSON object in a file of at most `limit` bytes. Raises ModelError if there is none."""
    return parse_object(path, read_text(path, limit))


def read_list(path: Path) -> list[Any]:
    """Read the JSON list in a file. Raises ModelError if there is none."""
    value = _parsed(path, read_text(path))
    if not isinstance(value, list):
        raise ModelError(f"{path}: does not hold a JSON list")
    return value
