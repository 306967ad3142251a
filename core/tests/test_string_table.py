"""Strings found in bulk equal those read one by one; so do the parts of a text among them."""

from __future__ import annotations

import random
import struct

import pytest
from bitnet_core import string_table
from bitnet_core.string_table import StringTable

SAMPLE = ["a", "Ġthe", "日本語", "th", "the", "x" * 300, "", "\0", "\0" * 9, "é", "th", " ", "a b", "Ġ" * 128]


def packed(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def test_texts_of_all_lengths_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(string_table, "PIECE", 97)
    texts = ["x" * n for n in range(1, 100)] + ["ü" * 127, "Ġ" * 128, "y" * 511, "z" * 1024, "Ġwörld", "日本語", "a b"]
    texts += ["c\0d", "e\0", "", "f"]
    data = packed([text.encode() for text in texts])
    monkeypatch.setattr(string_table, "MEAN_LENGTH", 100)
    found = StringTable.found(b"head" + data + bytes(50), 4, len(texts))
    assert found is not None
    assert found == (StringTable.of(texts), 4 + len(data))
    assert list(found[0]) == texts


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [b"one", b""],
        [b"\0" * 7, b"one"],
        [b"one", b"\0" * 8],
        [b"one" + b"\0" * 16 + b"two", b"three"],
        [b"long" * 20000, b"one"],
        [b"not \xff utf-8"],
        [b"cut \xc3", b"\xbc in two"],
    ],
)
def test_others_do_not(texts: list[bytes]) -> None:
    assert StringTable.found(packed(texts) + bytes(30), 0, len(texts)) is None


def test_zeros_in_the_last_one_are_its_own() -> None:
    texts = ["one", "a\0b" + "\0" * 16 + "c\0"]
    data = packed([text.encode() for text in texts])
    assert StringTable.found(data + bytes(9), 0, 2) == (StringTable.of(texts), len(data))


def test_an_array_that_is_cut_off_does_not() -> None:
    data = packed([b"one", b"two"])
    for end in range(len(data)):
        assert StringTable.found(data[:end], 0, 2) is None
    assert StringTable.found(data, 0, 2) == (StringTable.of(["one", "two"]), len(data))


@pytest.mark.parametrize("texts", [[], ["one"], SAMPLE, [""], ["\0"]])
def test_a_sequence_of_strings(texts: list[str]) -> None:
    made = StringTable.of(texts)
    assert list(made) == [made[at] for at in range(len(made))] == made[:] == texts
    assert made == texts
    assert made != [*texts, "more"]
    assert repr(made) == repr(texts)
    assert made[-3:] == texts[-3:]
    assert made.lengths.tolist() == list(map(len, texts))
    assert made.sizes.tolist() == [len(text.encode()) for text in texts]
    with pytest.raises(IndexError):
        made[len(texts)]


def test_a_lone_surrogate_is_replaced() -> None:
    assert list(StringTable.of(["a\udcffb"])) == ["a?b"]


@pytest.mark.parametrize(
    ("texts", "are"),
    [
        (["a b", "Ġ the"], True),
        (["a b", "ab"], False),
        (["a b", " b"], False),
        (["a b c", "a"], False),
        (["a ", "b c"], False),
        (["a b", "  "], False),
        (["a  b", "a"], False),
        ([], True),
    ],
)
def test_pairs(texts: list[str], are: bool) -> None:
    assert StringTable.of(texts).are_pairs() == are


def test_parts_of_a_text_and_members_of_a_set() -> None:
    draw = random.Random(7)
    letters = "abcĠ日\0"
    texts = ["".join(draw.choices(letters, k=draw.randint(0, 12))) for _ in range(3000)]
    made = StringTable.of(texts)
    for size in (0, 1, 5, 40, 400):
        text = "".join(draw.choices(letters, k=size))
        assert made.within(text) == [(at, part) for at, part in enumerate(texts) if part in text and part]
        some = set(draw.choices(texts, k=size))
        assert made.among(some) == [(at, part) for at, part in enumerate(texts) if part in some]
