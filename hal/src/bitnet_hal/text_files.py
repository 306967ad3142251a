"""Bytes of a text file as text: UTF-8, with or without the byte order mark that Windows programs write."""

from __future__ import annotations

import codecs

BOM = "\ufeff"
UTF16 = "is UTF-16 text: save it as UTF-8"


def decoded(raw: bytes) -> str:
    """The text without its byte order mark. ValueError, which says how the file must be, for other encodings."""
    if is_utf16(raw):
        raise ValueError(UTF16)
    try:
        return raw.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as exc:
        at = exc.start + len(codecs.BOM_UTF8) * raw.startswith(codecs.BOM_UTF8)
        raise ValueError(f"is not UTF-8 text: byte {at} is wrong") from exc


def is_utf16(raw: bytes) -> bool:
    """Whether the bytes begin as UTF-16 does: with its mark, or with one zero byte of two."""
    return raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or (len(raw) > 1 and raw[:2].count(0) == 1)
