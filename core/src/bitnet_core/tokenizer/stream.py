"""Streaming conversion of generated ids to text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from bitnet_core.tokenizer.tokenizer import Tokenizer


class StreamDecoder:
    """An incremental decoder of ids. A character whose bytes are spread over tokens is returned when it is complete.

    The concatenated results are the UTF-8 decoding of the tokens' bytes, with invalid bytes replaced by U+FFFD. Special
    tokens yield no text. The ids continue a text, so a leading space is kept.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that this token completes, "" while a character is incomplete."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def push_all(self, tokens: Iterable[int]) -> str:
        """Return the text that several tokens complete."""
        return self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, tokens)))

    def flush(self) -> str:
        """Return U+FFFD if the last character is incomplete, else "", and reset the decoder."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
