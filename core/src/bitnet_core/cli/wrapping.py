"""Text that arrives in chunks, broken between words at the end of a terminal's line."""

from __future__ import annotations

import shutil
import unicodedata


class WordWrap:
    """A text whose lines are broken between words; a word longer than a line is left to the terminal."""

    def __init__(self) -> None:
        self._column = 0
        self._word = ""

    def push(self, text: str) -> str:
        """Return the text that can be written now; a word is held back until it ends or fills a line."""
        shown = ""
        for char in text:
            if char.isspace():
                shown += self.rest()
                char = "\n" if self._column >= _width() else char  # the terminal would take a blank to the next line
                shown += char
                self._column = 0 if char == "\n" else self._column + (8 - self._column % 8 if char == "\t" else 1)
            else:
                self._word += char
                if _cells(self._word) >= _width() or unicodedata.east_asian_width(char) in "WF":
                    shown += self.rest()  # such scripts may be broken after every character
        return shown

    def rest(self) -> str:
        """Return the held-back word, on the line that it fits."""
        word, cells = self._word, _cells(self._word)
        self._word = ""
        fits = self._column + cells <= _width()
        self._column = (self._column + cells) if fits else cells % _width()
        return word if fits or not cells else f"\n{word}"


def _cells(text: str) -> int:
    """Return the terminal columns that the text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _width() -> int:
    return max(shutil.get_terminal_size().columns, 1)
