"""Decoding of text files: UTF-8, with or without the byte order mark that Windows programs write."""

from __future__ import annotations

import codecs

BOM = "\ufeff"
UTF16 = "is UTF-16 text: save it as UTF-8"


def decoded(raw: bytes) -> str:
    """Return the text without its byte order mark. Raises ValueError for other encodings."""
    if is_utf16(raw):
        raise ValueError(UTF16)
    try:
        return raw.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as exc:
        at = exc.start + len(codecs.BOM_UTF8) * raw.startswith(codecs.BOM_UTF8)
        raise ValueError(f"is not UTF-8 text: byte {at} is wrong") from exc


def is_utf16(raw: bytes) -> bool:
    """Return whether the bytes begin like UTF-16: with its mark, or with one zero among the first two bytes."""
    return raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or (len(raw) > 1 and raw[:2].count(0) == 1)
