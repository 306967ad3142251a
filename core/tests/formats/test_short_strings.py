"""Strings of an array that are read at once are those that would be read one by one."""

from __future__ import annotations

import struct

import pytest
from bitnet_core.formats.gguf import container


def packed(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def test_texts_of_all_lengths_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "PIECE", 97)
    texts = ["x" * n for n in range(1, 100)] + ["ü" * 127, "Ġwörld", "日本語", "a b"]
    data = packed([text.encode() for text in texts])
    found = container._short_strings(b"head" + data + bytes(50), 4, len(texts))
    assert found == (texts, 4 + len(data))


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [b"one", b"", b"two"],
        [b"", b"one"],
        [b"with \0 zero", b"one"],
        [b"\0" * 7, b"one"],
        [b"one", b"\0" * 8],
        [b"one", b"two" + b"\0" * 16 + b"three"],
        [b"long" * 64, b"one"],
        [b"not \xff utf-8"],
        [b"cut \xc3", b"\xbc in two"],
    ],
)
def test_others_do_not(texts: list[bytes]) -> None:
    assert container._short_strings(packed(texts) + bytes(30), 0, len(texts)) is None


def test_zeros_in_the_last_one_are_its_own() -> None:
    texts = ["one", "a\0b" + "\0" * 7]
    data = packed([text.encode() for text in texts])
    assert container._short_strings(data + bytes(9), 0, 2) == (texts, len(data))


def test_an_array_that_is_cut_off_does_not() -> None:
    data = packed([b"one", b"two"])
    for end in range(len(data)):
        assert container._short_strings(data[:end], 0, 2) is None
    assert container._short_strings(data, 0, 2) == (["one", "two"], len(data))
