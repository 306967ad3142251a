"""Builds the `tokenizers` pipeline of a GGUF vocabulary."""

from __future__ import annotations

from typing import Final

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from bitnet_core.errors import TokenizerError, short
from bitnet_core.tokenizer.pretokenizers import pre_tokenizer
from bitnet_core.tokenizer.tokenizer import SPACE, Tokenizer
from bitnet_core.tokenizer.vocabulary import END_OF_TURN_TEXTS, TokenType, Vocabulary

MAX_SPLITS: Final = 1 << 22  # candidate merges of an SPM vocabulary


def tokenizer_from_vocabulary(vocabulary: Vocabulary) -> Tokenizer:
    """A Tokenizer that behaves as bitnet.cpp does on this vocabulary; TokenizerError if it is inconsistent."""
    return _byte_level(vocabulary) if vocabulary.model == "gpt2" else _sentencepiece(vocabulary)


def _byte_level(vocabulary: Vocabulary) -> Tokenizer:
    rule = pre_tokenizer(vocabulary.pre, vocabulary.tokens)
    ids = _ids_by_text(vocabulary)
    unknown = None if vocabulary.unknown_id is None else vocabulary.tokens[vocabulary.unknown_id]
    try:
        model = models.BPE(ids, vocabulary.merges, unk_token=unknown, ignore_merges=rule.ignore_merges)
    except Exception as error:
        raise _refused(vocabulary, ids, error) from error
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=bool(vocabulary.add_space_prefix), use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    add_bos = rule.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
    return _finish(vocabulary, backend, vocabulary.bos_id, vocabulary.eos_id, add_bos)


def _refused(vocabulary: Vocabulary, ids: dict[str, int], error: Exception) -> TokenizerError:
    """Which merge it is, as the library does not say."""
    for rank, (left, right) in enumerate(vocabulary.merges):
        if not (left in ids and right in ids and left + right in ids):
            what = f"joins {short(left)} and {short(right)}, which are not all in the vocabulary"
            return TokenizerError(f"tokenizer.ggml.merges[{rank}] {what}")
    return TokenizerError(f"the vocabulary makes no tokenizer: {short(str(error))}")


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    ids = _ids_by_text(vocabulary)
    default = {"bos": 1, "eos": 2, "unknown": 0}
    known = {"bos": vocabulary.bos_id, "eos": vocabulary.eos_id, "unknown": vocabulary.unknown_id}
    found = {
        name: value if value is not None or default[name] >= len(ids) else default[name]
        for name, value in known.items()
    }
    unknown = found["unknown"]
    backend = Backend(
        models.BPE(
            ids,
            _merges_from_scores(vocabulary, ids),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = vocabulary.add_space_prefix is not False
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return _finish(vocabulary, backend, found["bos"], found["eos"], vocabulary.add_bos is not False, prefix)


def _merges_from_scores(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """SPM joins the neighbours whose union has the highest score, so every way to cut a token into two tokens is a
    merge with the token's score as its rank. Control, byte and unused tokens are never the result of a merge."""
    mergeable = (TokenType.NORMAL, TokenType.USER_DEFINED)
    ranked: list[tuple[float, int, tuple[str, str]]] = []
    splits = 0
    for index, text in enumerate(vocabulary.tokens):
        if vocabulary.types[index] not in mergeable:
            continue
        splits += max(len(text) - 1, 0)
        if splits > MAX_SPLITS:
            raise TokenizerError(f"the SPM vocabulary has over {MAX_SPLITS} ways to cut its tokens; it looks corrupt")
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                ranked.append((-vocabulary.scores[index], index, (left, right)))
    ranked.sort(key=lambda entry: entry[:2])
    return [pair for _, _, pair in ranked]


def _ids_by_text(vocabulary: Vocabulary) -> dict[str, int]:
    """Of a text that is there twice, the first."""
    last = len(vocabulary.tokens) - 1
    return dict(zip(reversed(vocabulary.tokens), range(last, -1, -1), strict=True))


def _finish(
    vocabulary: Vocabulary,
    backend: Backend,
    bos_id: int | None,
    eos_id: int | None,
    add_bos: bool,
    space_prefix: bool = False,
) -> Tokenizer:
    types = list(vocabulary.types)
    for token in (bos_id, eos_id, vocabulary.eot_id, vocabulary.padding_id):
        if token is not None and types[token] == TokenType.NORMAL and vocabulary.tokens[token]:
            types[token] = TokenType.CONTROL  # files without token types
    control, own = TokenType.CONTROL, TokenType.USER_DEFINED
    specials = [i for i, kind in enumerate(types) if kind is control or kind is own]
    backend.add_tokens(
        [
            AddedToken(vocabulary.tokens[i], special=types[i] == TokenType.CONTROL, normalized=False)
            for i in specials
            if vocabulary.tokens[i]
        ]
    )
    ends = {token for token in (eos_id, vocabulary.eot_id) if token is not None}
    ends |= {i for i in specials if vocabulary.tokens[i] in END_OF_TURN_TEXTS}
    return Tokenizer(
        backend,
        tokens=vocabulary.tokens,
        types=types,
        byte_level=vocabulary.model == "gpt2",
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=frozenset(ends),
        add_bos=add_bos,
        space_prefix=space_prefix,
    )
