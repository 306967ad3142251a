"""The tokenizer that the engine, the commands and the server use, independent of its file."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import tokenizers
from bitnet_hal.errors import UsageError

from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer.vocabulary import TokenType, check_specials

MAX_TEXT: Final = 1 << 26  # characters of one encode
SPACE: Final = "\u2581"  # SentencePiece's space
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable character of each byte: 33-126, 161-172 and 174-255 represent themselves, the other 68
    follow from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in set(plain)]
    return {chr(value): value for value in plain} | {chr(256 + i): value for i, value in enumerate(others)}


_ALPHABET: Final = byte_alphabet()


@contextmanager
def panics_are_errors() -> Iterator[None]:
    """Raise a panic of the tokenizers library, which is a bare BaseException, as a TokenizerError."""
    try:
        yield
    except BaseException as exc:
        if type(exc).__module__ != "pyo3_runtime":
            raise
        raise TokenizerError(f"the tokenizer of the model fails in its library: {str(exc)[:300]}") from exc


class Tokenizer:
    """A tokenizer of one model. Safe to use from several threads.

    whole: builds the library's tokenizer for any text. part: builds one that encodes a given text in the same way, much
    sooner, or returns None; it serves the first text, so that a user need not wait, and `whole` all others. types: the
    TokenType of each token. bos_id: id that begins a text if add_bos is true, or None; eos_ids: ids that end a reply
    (end of text and end of turn); text_end: ids that end a whole text, such as one to embed. plain_tags: user-defined
    tokens are decoded as they are spelled, as in llama.cpp. specials: ids of the control tokens by text; chat_template:
    as the model states it, or None; tool_template: the one for conversations with tools, if it is another. Raises
    TokenizerError for special tokens that no real model has (too many, too long).
    """

    def __init__(
        self,
        whole: Callable[[], tokenizers.Tokenizer],
        part: Callable[[str], tokenizers.Tokenizer | None],
        *,
        tokens: Sequence[str],
        types: npt.NDArray[np.int8],
        byte_level: bool,
        bos_id: int | None,
        eos_id: int | None,
        eos_ids: frozenset[int],
        add_bos: bool,
        space_prefix: bool,
        plain_tags: bool = True,
        text_end: tuple[int, ...] = (),
    ) -> None:
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.eos_ids = eos_ids
        self.add_bos = add_bos
        self.text_end = text_end
        self._make, self._part = whole, part
        self._whole: tokenizers.Tokenizer | None = None
        self._began = False
        self._lock = threading.Lock()
        self.tokens = tokens
        self._bytes: dict[int, bytes] = {}
        self.types = types
        self.byte_level = byte_level
        self.space_prefix = space_prefix
        self._plain_tags = plain_tags
        self.chat_template: Any = None
        self.tool_template: Any = None
        self.specials = {tokens[i]: i for i in np.flatnonzero(types == TokenType.CONTROL).tolist() if tokens[i]}
        own = np.flatnonzero(types == TokenType.USER_DEFINED).tolist()
        self._tags = {tokens[i]: i for i in reversed(own)} | self.specials
        check_specials(list(self.specials))

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a Tokenizer cannot be pickled or copied, because it has a lock and a library's object: "
            "call load() in each process, and let threads share one"
        )

    def tag(self, text: str) -> int | None:
        """Return the id of the control or user-defined token with this text, such as <think>; None if there is none."""
        return self._tags.get(text)

    @property
    def vocab_size(self) -> int:
        """Number of ids; the model's own vocabulary may be padded beyond it."""
        return len(self.tokens)

    def check_fits(self, text: str, limit: int) -> None:
        """Raise UsageError if the text's length alone shows that it has more than `limit` tokens.

        That is known before it is encoded, because no token has more bytes than the longest one.
        """
        if len(text) > limit * self._SHRINKING and len(text) > self.most_characters(limit):
            raise UsageError(
                f"the text has {len(text)} characters, but the context holds {limit} tokens with the answer"
            )

    def most_characters(self, tokens: int) -> int:
        """Return the largest number of characters of a text of this many tokens."""
        return tokens * self._SHRINKING * self._longest_token

    _SHRINKING: Final = 4
    """Factor by which a normalizer may shorten a text: composed characters, stripped blanks."""

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self.tokens), default=1)

    def encode(self, text: str, *, add_bos: bool, parse_special: bool = False) -> list[int]:
        """Encode a text. Control tokens in the text are ordinary characters unless parse_special."""
        if len(text) > MAX_TEXT:
            raise UsageError(f"the text has {len(text)} characters; at most {MAX_TEXT} can be encoded at once")
        # Lone surrogates (undecodable bytes of a command line) have no UTF-8 form.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        ids = self._encode(text, parse_special)
        if not parse_special and (self.types[ids] == TokenType.CONTROL).any():
            ids = [part for token in ids for part in self._spelled(token)]
        if add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        return ids

    def prepare(self) -> None:
        """Build the tokenizer for any text now, instead of at the second text. Raises TokenizerError for an
        inconsistent vocabulary."""
        with self._lock:
            self._prepared()

    def _prepared(self) -> tokenizers.Tokenizer:
        if self._whole is None:
            self._whole = self._make()
            del self._make, self._part  # they hold the merges
        return self._whole

    def _backend(self, text: str) -> tokenizers.Tokenizer:
        """Return the pipeline that encodes this text."""
        first, self._began = not self._began, True
        part = self._part(text) if first and self._whole is None else None
        return part or self._prepared()

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        with self._lock, panics_are_errors():  # encode_special_tokens is a setting of the shared pipeline
            backend = self._backend(text)
            backend.encode_special_tokens = not parse_special
            return list(backend.encode(text, add_special_tokens=False).ids)

    def _spelled(self, token: int) -> list[int]:
        """Return a control token that plain text reached by merging as the tokens of its characters."""
        if self.types[token] != TokenType.CONTROL:
            return [token]
        spelled = [part for char in self.tokens[token] for part in self._encode(char, parse_special=False)]
        return [part for part in spelled if self.types[part] != TokenType.CONTROL]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode a whole text; control tokens are skipped, invalid bytes become U+FFFD."""
        text = b"".join(self.token_bytes(token) for token in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.space_prefix else text

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes (perhaps a part of a character) of a token; b"" for control tokens and padding ids."""
        found = self._bytes.get(token)
        if found is None:
            if not 0 <= token < len(self.tokens):
                return b""
            found = self._bytes[token] = self._written(token)
        return found

    def _written(self, token: int) -> bytes:
        text, kind = self.tokens[token], self.types[token]
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            return b""
        if kind == TokenType.USER_DEFINED and self._plain_tags:
            return text.encode()
        if self.byte_level:
            if all(char in _ALPHABET for char in text):
                return bytes(_ALPHABET[char] for char in text)
            return text.encode()
        if kind == TokenType.BYTE and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        return text.replace(SPACE, " ").encode()

    def token_text(self, token: int) -> str:
        """Return the token as the vocabulary spells it, "" outside the vocabulary."""
        return self.tokens[token] if 0 <= token < len(self.tokens) else ""

    def to_json(self) -> str:
        """Return the tokenizer as the text of a tokenizer.json."""
        with self._lock:
            backend = self._prepared()
            backend.encode_special_tokens = False
            return str(backend.to_str())
