"""Build the `tokenizers` pipeline of a GGUF vocabulary: of the whole vocabulary, or of the part that one text needs.

Merges of a text only yield substrings of it. So tokens that are not substrings, and their merges, can be left out; the
library then needs milliseconds instead of half a second for a vocabulary of 128,000 tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from bitnet_hal.errors import short
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer.pretokenizers import pre_tokenizer
from bitnet_core.tokenizer.tokenizer import SPACE, Tokenizer, byte_alphabet
from bitnet_core.tokenizer.vocabulary import END_OF_TURN_TEXTS, TokenType, Vocabulary, of_kind

MAX_SPLITS: Final = 1 << 22  # candidate merges of an SPM vocabulary
MAX_PART: Final = 1 << 14
"""Maximum characters of a text for which building its part of a vocabulary is much faster than building all of it."""

Entry = tuple[int, str]
"""A token's id and text."""
_NFC: Final = normalizers.NFC()
_LETTERS: Final = {byte: letter for letter, byte in byte_alphabet().items()}


def tokenizer_from_vocabulary(vocabulary: Vocabulary) -> Tokenizer:
    """Build a Tokenizer that behaves as bitnet.cpp does on this vocabulary.

    Raises TokenizerError if the vocabulary is inconsistent. Merges of unknown tokens are only detected when the whole
    vocabulary is built.
    """
    byte_level = vocabulary.model == "gpt2"
    vocabulary = _with_defaults(vocabulary)
    pipeline = _ByteLevel(vocabulary) if byte_level else _SentencePiece(vocabulary)
    ends = {token for token in (vocabulary.eos_id, vocabulary.eot_id) if token is not None}
    return Tokenizer(
        pipeline.whole,
        pipeline.part,
        tokens=vocabulary.tokens,
        types=pipeline.types,
        byte_level=byte_level,
        bos_id=vocabulary.bos_id,
        eos_id=vocabulary.eos_id,
        eos_ids=frozenset(ends | {token for token, text in pipeline.specials if text in END_OF_TURN_TEXTS}),
        add_bos=bool(vocabulary.add_bos),
        space_prefix=not byte_level and bool(vocabulary.add_space_prefix),
        text_end=(vocabulary.eos_id,) if vocabulary.add_eos and vocabulary.eos_id is not None else (),
    )


def _with_defaults(vocabulary: Vocabulary) -> Vocabulary:
    """Replace omitted values by their defaults."""
    if vocabulary.model == "gpt2":
        rule = pre_tokenizer(vocabulary.pre, vocabulary.tokens)
        return replace(
            vocabulary,
            add_bos=rule.add_bos if vocabulary.add_bos is None else vocabulary.add_bos,
            add_space_prefix=bool(vocabulary.add_space_prefix),
        )

    def stated(token: int | None, default: int) -> int | None:
        return default if token is None and default < len(vocabulary.tokens) else token

    return replace(
        vocabulary,
        bos_id=stated(vocabulary.bos_id, 1),
        eos_id=stated(vocabulary.eos_id, 2),
        unknown_id=stated(vocabulary.unknown_id, 0),
        add_bos=vocabulary.add_bos is not False,
        add_space_prefix=vocabulary.add_space_prefix is not False,
    )


class _Pipeline(ABC):
    """A builder of the library's tokenizer from a vocabulary.

    types: the file's, except that tokens named as bos and so on are control tokens. specials: tokens matched in a text
    before all others.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary, self.types = vocabulary, vocabulary.types.copy()
        for token in (vocabulary.bos_id, vocabulary.eos_id, vocabulary.eot_id, vocabulary.padding_id):
            if token is not None and self.types[token] == TokenType.NORMAL and vocabulary.tokens[token]:
                self.types[token] = TokenType.CONTROL  # files without token types
        marked = np.flatnonzero(of_kind(self.types, TokenType.CONTROL, TokenType.USER_DEFINED))
        self.specials: list[Entry] = [(token, vocabulary.tokens[token]) for token in marked.tolist()]
        unknown = vocabulary.unknown_id
        self._unknown = None if unknown is None else vocabulary.tokens[unknown]

    @abstractmethod
    def _pipeline(self, entries: Sequence[Entry]) -> Backend:
        """Build the pipeline of these tokens and their merges, without special tokens."""

    @abstractmethod
    def _written(self, text: str) -> str | None:
        """Return the text in the characters that merges use; None if they are not known in advance."""

    def whole(self) -> Backend:
        """Build the pipeline of all tokens. Raises TokenizerError for merges of unknown tokens."""
        return self._with_specials(list(enumerate(self._vocabulary.tokens)))

    def part(self, text: str) -> Backend | None:
        """Build a pipeline that encodes this text, and no other, as `whole` does.

        Returns None if that needs all tokens, for example if a character is not a token: it becomes byte tokens, which
        may be merged with others.
        """
        written = self._written(text) if len(text) <= MAX_PART else None
        if written is None:
            return None
        entries = self._vocabulary.tokens.within(written)
        if not set(written) <= {token for _, token in entries}:
            return None
        return self._with_specials(sorted({*entries, *self.specials}))

    def _with_specials(self, entries: Sequence[Entry]) -> Backend:
        backend, types = self._pipeline(entries), self.types
        backend.add_tokens(
            [
                AddedToken(text, special=bool(types[token] == TokenType.CONTROL), normalized=False)
                for token, text in self.specials
                if text
            ]
        )
        return backend


class _ByteLevel(_Pipeline):
    """The pipeline of GPT-2's byte-level BPE: every byte is a letter, and merges are listed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._rule = pre_tokenizer(vocabulary.pre, vocabulary.tokens)

    def _written(self, text: str) -> str | None:
        if self._vocabulary.add_space_prefix:  # of each part between special tokens
            return None
        if self._rule.nfc:
            text = _NFC.normalize_str(text)
        return "".join(map(_LETTERS.__getitem__, text.encode()))

    def _pipeline(self, entries: Sequence[Entry]) -> Backend:
        ids = _ids(entries)
        merges = self._merges(entries, ids)
        try:
            model = models.BPE(ids, merges, unk_token=self._unknown, ignore_merges=self._rule.ignore_merges)
        except Exception as error:
            raise _refused(merges, ids, error) from error
        backend = Backend(model)
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self._rule.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=bool(self._vocabulary.add_space_prefix), use_regex=False),
            ]
        )
        if self._rule.nfc:
            backend.normalizer = _NFC
        backend.decoder = decoders.ByteLevel()
        return backend

    def _merges(self, entries: Sequence[Entry], ids: dict[str, int]) -> list[tuple[str, str]]:
        merges = self._vocabulary.merges
        if len(entries) == len(self._vocabulary.tokens):
            words = " ".join(merges).split(" ") if merges else []  # much faster than splitting each
            pairs = iter(words)
            return list(zip(pairs, pairs, strict=True))
        makers = {f"{left} {right}" for _, text in entries for left, right in _cuts(text, ids)}
        return [(left, right) for left, _, right in (text.partition(" ") for _, text in merges.among(makers))]


class _SentencePiece(_Pipeline):
    """The pipeline of SPM: spaces are SPACE, and scores order the merges."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._made = of_kind(vocabulary.types, TokenType.NORMAL, TokenType.USER_DEFINED)
        if int((vocabulary.tokens.lengths[self._made] - 1).clip(0).sum()) > MAX_SPLITS:
            raise TokenizerError(f"the SPM vocabulary has over {MAX_SPLITS} ways to split its tokens; it looks damaged")

    def _written(self, text: str) -> str | None:
        prefix = self._vocabulary.add_space_prefix
        if prefix and any(
            special in text for _, special in self.specials
        ):  # the prefix is also added to each part between special tokens
            return None
        return (SPACE if prefix and text else "") + text.replace(" ", SPACE)

    def _pipeline(self, entries: Sequence[Entry]) -> Backend:
        ids = _ids(entries)
        merges = self._merges(entries, ids)
        backend = Backend(models.BPE(ids, merges, unk_token=self._unknown, fuse_unk=True, byte_fallback=True))
        prefix = bool(self._vocabulary.add_space_prefix)
        steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if prefix else []
        backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
        strip = [decoders.Strip(" ", 1, 0)] if prefix else []
        backend.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        return backend

    def _merges(self, entries: Iterable[Entry], ids: dict[str, int]) -> list[tuple[str, str]]:
        """Return the merges in order: SPM joins the adjacent tokens whose concatenation has the highest score.

        So every split of a token into two tokens is a merge, ranked by the token's score. Control, byte and unused
        tokens are never the result of a merge.
        """
        scores = self._vocabulary.scores
        ranked = [
            (-scores[token], token, pair) for token, text in entries if self._made[token] for pair in _cuts(text, ids)
        ]
        ranked.sort(key=lambda entry: entry[:2])
        return [pair for _, _, pair in ranked]


def _ids(entries: Sequence[Entry]) -> dict[str, int]:
    """Return the id of each text; the first one if a text appears twice."""
    return {text: token for token, text in reversed(entries)}


def _cuts(text: str, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the splits of a text into two tokens."""
    cuts = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
    return [(left, right) for left, right in cuts if left in ids and right in ids]


def _refused(merges: Sequence[tuple[str, str]], ids: dict[str, int], error: Exception) -> TokenizerError:
    """Return the error that names the invalid merge, which the library's error does not."""
    for rank, (left, right) in enumerate(merges):
        if not (left in ids and right in ids and left + right in ids):
            what = f"joins {short(left)} and {short(right)}, which are not all in the vocabulary"
            return TokenizerError(f"tokenizer.ggml.merges[{rank}] {what}")
    return TokenizerError(f"the vocabulary does not make a valid tokenizer: {short(str(error))}")
