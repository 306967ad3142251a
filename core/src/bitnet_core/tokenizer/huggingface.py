"""Load the tokenizer.json of a Hugging Face folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from bitnet_hal.errors import short
from tokenizers import Tokenizer as Backend

from bitnet_core.errors import TokenizerError
from bitnet_core.json_limits import has_lone_surrogate
from bitnet_core.tokenizer.patterns import check_pipeline, steps
from bitnet_core.tokenizer.tokenizer import Tokenizer, panics_are_errors
from bitnet_core.tokenizer.vocabulary import (
    END_OF_TURN_TEXTS,
    MAX_MERGES,
    MAX_TOKENS,
    TokenType,
    check_specials,
)

MAX_JSON: Final = 1 << 27  # characters
_CONTROL_TEXT: Final = re.compile(r"<\|.*\|>|</?s>|<unk>|<pad>", re.DOTALL)
_KNOWN: Final = {
    "normalizer": {"Sequence", "NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Strip", "Lowercase"},
    "pre_tokenizer": {"Sequence", "ByteLevel", "Split", "Metaspace", "Digits", "Punctuation", "WhitespaceSplit"},
    "decoder": {"Sequence", "ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"},
    "post_processor": {"Sequence", "ByteLevel", "TemplateProcessing"},
}
_BYTE_TEXT: Final = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def tokenizer_from_json(tokenizer_json: str, config: Mapping[str, Any], stops: Any = None) -> Tokenizer:
    """Build a Tokenizer from the text of tokenizer.json, the contents of tokenizer_config.json and the eos_token_id of
    generation_config.json (an id or a list of ids).

    Added tokens that look like control tokens are treated as such even if the file does not mark them. Raises
    TokenizerError, with the fault, for an invalid file.
    """
    document = _document(tokenizer_json)
    _add_stated_tokens(document, config)
    added = _added_tokens(document)
    for entry in added:
        if _CONTROL_TEXT.fullmatch(entry["content"]):
            entry["special"] = True
    document["truncation"] = document["padding"] = None  # a prompt is never truncated silently
    kinds = _checked_parts(document)
    backend = _backend(json.dumps(document))
    tokens, types = _tables(backend, added, "ByteLevel" in kinds)
    bos_id = _named(backend, config.get("bos_token"))
    eos_id = _named(backend, config.get("eos_token"))
    starts, text_end = _around(backend)
    if bos_id is None and starts:
        bos_id = starts[0]
    ends = {int(entry["id"]) for entry in added if entry["content"] in END_OF_TURN_TEXTS}
    ends |= {token for token in (stops if isinstance(stops, list) else [stops]) if type(token) is int}
    if eos_id is not None:
        ends.add(eos_id)
    for token in (bos_id, eos_id):
        if token is not None:
            types[token] = TokenType.CONTROL
    stated = config.get("add_bos_token")
    return Tokenizer(
        lambda: backend,
        lambda _: None,
        tokens=tokens,
        types=np.array(types, np.int8),
        byte_level="ByteLevel" in kinds,
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=frozenset(ends),
        add_bos=stated if isinstance(stated, bool) else bos_id is not None and starts[:1] == [bos_id],
        space_prefix="ByteLevel" not in kinds and bool({"Strip", "Metaspace"} & kinds),
        plain_tags="ByteLevel" in kinds,
        text_end=text_end,
    )


def _around(backend: Backend) -> tuple[list[int], tuple[int, ...]]:
    """Return the ids that the post-processor adds before and after a text."""
    with panics_are_errors():
        whole, plain = (list(backend.encode("a", add_special_tokens=special).ids) for special in (True, False))
    for first in range(len(whole) - len(plain) + 1):
        if plain and whole[first : first + len(plain)] == plain:
            return whole[:first], tuple(whole[first + len(plain) :])
    return whole, ()


def _checked_parts(document: Mapping[str, Any]) -> set[str]:
    """Return the kinds of decoder in a tokenizer.json. Raises TokenizerError for a part that is not supported."""
    _check_model(document.get("model"))
    for part, known in _KNOWN.items():
        if unknown := _kinds(document.get(part)) - known:
            raise TokenizerError(f"tokenizer.json uses the {part} {_named_kinds(unknown)}, which is not supported")
    check_pipeline({part: document.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")})
    kinds = _kinds(document.get("decoder"))
    if not kinds & {"ByteLevel", "ByteFallback", "Metaspace"}:
        stated = f"the decoder {_named_kinds(kinds)}" if kinds else "no decoder"
        raise TokenizerError(f"tokenizer.json has {stated}: not byte-level or SentencePiece BPE")
    return kinds


def count_tokens(document: Mapping[str, Any]) -> int:
    """Return the number of ids up to the last token of a tokenizer.json, without converters' fillers ([PAD7] as token
    7); 0 if the document is malformed."""
    model, added = document.get("model"), document.get("added_tokens") or []
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict) or not isinstance(added, list):
        return 0
    named = [(text, token) for text, token in vocabulary.items() if text != f"[PAD{token}]"]
    ids = [*(token for _, token in named), *(entry.get("id") for entry in added if isinstance(entry, dict))]
    return max(ids) + 1 if ids and all(type(token) is int and token >= 0 for token in ids) else 0


def _document(text: str) -> dict[str, Any]:
    if len(text) > MAX_JSON:
        raise TokenizerError(f"tokenizer.json has {len(text)} characters; at most {MAX_JSON} are accepted")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise TokenizerError(f"tokenizer.json is not JSON: {exc}") from exc
    if not isinstance(document, dict):
        raise TokenizerError("tokenizer.json does not hold an object")
    if has_lone_surrogate(text, document):
        raise TokenizerError("tokenizer.json holds half a character (a lone surrogate, such as \\ud800)")
    return document


def _add_stated_tokens(document: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Add the tokens of added_tokens_decoder in tokenizer_config.json that tokenizer.json lacks."""
    stated, added = config.get("added_tokens_decoder"), document.get("added_tokens")
    if not isinstance(stated, dict) or not isinstance(added, list | None):
        return
    known = {entry.get("content") for entry in added or () if isinstance(entry, dict)}
    missing = [
        entry | {"id": int(token)}
        for token, entry in stated.items()
        if token.isdecimal() and isinstance(entry, dict) and entry.get("content") not in known
    ]
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    document["added_tokens"] = [
        *(added or ()),
        *(dict.fromkeys(flags, False) | entry for entry in sorted(missing, key=lambda entry: int(entry["id"]))),
    ]


def _added_tokens(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    added = document.get("added_tokens") or []
    if not isinstance(added, list):
        raise TokenizerError("added_tokens of tokenizer.json must be a list")
    for entry in added:
        if not (isinstance(entry, dict) and isinstance(entry.get("content"), str) and isinstance(entry.get("id"), int)):
            raise TokenizerError("added_tokens of tokenizer.json has an entry without content and id")
    check_specials([entry["content"] for entry in added])
    return added


def _check_model(model: Any) -> None:
    """Raise TokenizerError for a model part that would crash the process, as the library does not validate it."""
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        raise TokenizerError(f"tokenizer.json holds a {kind} model: only BPE is supported")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise TokenizerError(f"tokenizer.json sets {name} of its BPE model, which is not supported")
        model[name] = None
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocabulary, dict) or not 0 < len(vocabulary) <= MAX_TOKENS:
        raise TokenizerError(f"the vocabulary of tokenizer.json must have 1 to {MAX_TOKENS} tokens")
    if not all(type(token) is int and 0 <= token < MAX_TOKENS for token in vocabulary.values()):
        raise TokenizerError(f"the vocabulary of tokenizer.json must give ids from 0 to {MAX_TOKENS - 1}")
    if not isinstance(merges, list) or len(merges) > MAX_MERGES:
        raise TokenizerError(f"the merges of tokenizer.json must be a list of at most {MAX_MERGES}")


def _kinds(node: Any) -> set[str]:
    """Return the types of a part of the pipeline and of its components."""
    return {str(step.get("type")) for step in steps(node)}


def _named_kinds(kinds: set[str]) -> str:
    return ", ".join(sorted(kind[:40] for kind in kinds)[:5])


def _backend(text: str) -> Backend:
    try:
        return Backend.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as exc:  # for bad files the library raises Exception or a Rust panic
        raise TokenizerError(f"tokenizer.json cannot be loaded: {exc}") from exc


def _tables(backend: Backend, added: list[dict[str, Any]], byte_level: bool) -> tuple[list[str], list[TokenType]]:
    vocabulary = backend.get_vocab(with_added_tokens=True)
    count = max(vocabulary.values(), default=-1) + 1
    if not 0 < count <= MAX_TOKENS:
        raise TokenizerError(f"tokenizer.json has ids up to {count - 1}; at most {MAX_TOKENS} tokens are accepted")
    tokens = [""] * count
    types = [TokenType.UNUSED] * count
    for text, token in vocabulary.items():
        tokens[token] = text
        types[token] = TokenType.BYTE if not byte_level and _BYTE_TEXT.fullmatch(text) else TokenType.NORMAL
    for entry in added:
        text, stated = entry["content"], int(entry["id"])
        if vocabulary.get(text) != stated:
            raise TokenizerError(
                f"tokenizer.json assigns {short(text)} the id {stated}, its library {vocabulary.get(text)}"
            )
        types[stated] = TokenType.CONTROL if entry.get("special") else TokenType.USER_DEFINED
    return tokens, types


def _named(backend: Backend, token: Any) -> int | None:
    """Return the id of a token that tokenizer_config.json names as a string or as {"content": ...}."""
    text = token.get("content") if isinstance(token, dict) else token
    if text is None:
        return None
    if not isinstance(text, str):
        raise TokenizerError(f"tokenizer_config.json names a token as {type(text).__name__}, not as a string")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise TokenizerError("tokenizer_config.json names a token by half a character (a lone surrogate)")
    found = backend.token_to_id(text)
    return None if found is None else int(found)
