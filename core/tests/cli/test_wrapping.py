"""Lines broken between words, on a terminal of ten columns."""

from __future__ import annotations

import pytest
from bitnet_core.cli.wrapping import WordWrap


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one two three", "one two \nthree"),
        ("0123456789 next", "0123456789\nnext"),
        ("0123456789\nnext", "0123456789\nnext"),
        ("a 012345678901 b", "a \n012345678901 b"),
        ("  indented\nby two", "  indented\nby two"),
        ("tab\tto", "tab\tto"),
        ("tab\tnext", "tab\t\nnext"),
        ("e\u0301" * 9 + " fits", "e\u0301" * 9 + " \nfits"),
        ("中文没有空格的句子", "中文没有空\n格的句子"),
        ("", ""),
    ],
)
def test_words_stay_whole(monkeypatch: pytest.MonkeyPatch, text: str, shown: str) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    for size in (1, 3, 100):
        wrap = WordWrap()
        pieces = [wrap.push(text[start : start + size]) for start in range(0, len(text), size)]
        assert "".join([*pieces, wrap.rest()]) == shown
