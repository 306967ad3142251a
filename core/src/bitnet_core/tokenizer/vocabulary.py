"""GGUF's tokenizer.ggml.* keys, checked. A model file is hostile: every type, count, length and id is bounded here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from bitnet_hal.errors import short

from bitnet_core.errors import TokenizerError
from bitnet_core.string_table import StringTable

MAX_TOKENS: Final = 1 << 20
MAX_MERGES: Final = 1 << 22
MAX_SPECIALS: Final = 1 << 14
MAX_SPECIAL_CHARS: Final = 1 << 18  # of all special tokens together
MAX_SPECIAL: Final = 256  # characters of one
MAX_TOKEN_CHARS: Final = 2048
MAX_TOTAL_CHARS: Final = 1 << 25

END_OF_TURN_TEXTS: Final = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"}
)
"""Tokens that end a turn even if the file does not name them as end of sequence."""


class TokenType(IntEnum):
    """The values of tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer as GGUF describes it; ids index `tokens`."""

    model: str  # "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE)
    pre: str | None
    tokens: StringTable
    types: npt.NDArray[np.int8]  # of TokenType
    scores: list[float]  # "llama" only
    merges: StringTable  # "gpt2" only: "left right", best first
    bos_id: int | None = None
    eos_id: int | None = None
    unknown_id: int | None = None
    padding_id: int | None = None
    eot_id: int | None = None
    add_bos: bool | None = None  # None: the file does not say
    add_space_prefix: bool | None = None
    add_eos: bool = False


def parse_vocabulary(keys: Mapping[str, Any]) -> Vocabulary:
    """Read and check the tokenizer.* keys of a GGUF file. Raises TokenizerError with the key and its fault."""
    model = _string(keys, "tokenizer.ggml.model")
    if model is None:
        raise TokenizerError("the file has no tokenizer (tokenizer.ggml.model is missing); convert the model again")
    if model not in ("gpt2", "llama"):
        raise TokenizerError(
            f"tokenizer.ggml.model is {short(model)}: only gpt2 (byte-level BPE) and llama (SPM) are supported"
        )
    tokens = _strings(keys, "tokenizer.ggml.tokens", MAX_TOKENS)
    if not tokens:
        raise TokenizerError("tokenizer.ggml.tokens is missing or empty")
    types = _types(keys, len(tokens))
    specials = int(of_kind(types, TokenType.CONTROL, TokenType.USER_DEFINED).sum())
    if specials > MAX_SPECIALS:
        raise TokenizerError(f"tokenizer.ggml.token_type marks {specials} special tokens; the limit is {MAX_SPECIALS}")

    def token_id(name: str) -> int | None:
        return _token_id(keys, f"tokenizer.ggml.{name}_token_id", len(tokens))

    return Vocabulary(
        model=model,
        pre=_string(keys, "tokenizer.ggml.pre"),
        tokens=tokens,
        types=types,
        scores=_scores(keys, len(tokens)) if model == "llama" else [],
        merges=_merges(keys) if model == "gpt2" else StringTable.of([]),
        bos_id=token_id("bos"),
        eos_id=token_id("eos"),
        unknown_id=token_id("unknown"),
        padding_id=token_id("padding"),
        eot_id=token_id("eot"),
        add_bos=_flag(keys, "tokenizer.ggml.add_bos_token"),
        add_space_prefix=_flag(keys, "tokenizer.ggml.add_space_prefix"),
        add_eos=bool(_flag(keys, "tokenizer.ggml.add_eos_token")),
    )


def of_kind(types: npt.NDArray[np.int8], *kinds: TokenType) -> npt.NDArray[np.bool_]:
    """Return a mask of the types that are one of `kinds`."""
    found: npt.NDArray[np.bool_] = np.logical_or.reduce([types == kind for kind in kinds])
    return found


def check_specials(texts: Sequence[str]) -> None:
    """Raise TokenizerError if there are more special tokens, or longer ones, than in any real model."""
    size = sum(map(len, texts))
    if max(map(len, texts), default=0) > MAX_SPECIAL:
        raise TokenizerError(f"the tokenizer has a special token of over {MAX_SPECIAL} characters")
    if len(texts) > MAX_SPECIALS or size > MAX_SPECIAL_CHARS:
        raise TokenizerError(
            f"the tokenizer has {len(texts)} special tokens of {size} characters in all; "
            f"at most {MAX_SPECIALS} of {MAX_SPECIAL_CHARS} characters are accepted"
        )


def _string(keys: Mapping[str, Any], key: str) -> str | None:
    value = keys.get(key)
    if value is None or isinstance(value, str):
        return value
    raise TokenizerError(f"{key} must be a string, not {type(value).__name__}")


def _flag(keys: Mapping[str, Any], key: str) -> bool | None:
    value = keys.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise TokenizerError(f"{key} must be a bool, not {type(value).__name__}")


def _array(keys: Mapping[str, Any], key: str, limit: int) -> Sequence[Any]:
    value = keys.get(key)
    if value is None:
        return []
    if isinstance(value, str | bytes) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        raise TokenizerError(f"{key} must be an array, not {type(value).__name__}")
    if len(value) > limit:
        raise TokenizerError(f"{key} has {len(value)} entries; at most {limit} are accepted")
    if isinstance(value, StringTable):
        return value
    # A numpy array becomes Python numbers in one step; a list is copied.
    return list(value.tolist() if hasattr(value, "tolist") else value)


def _strings(keys: Mapping[str, Any], key: str, limit: int) -> StringTable:
    found = _array(keys, key, limit)
    if not isinstance(found, StringTable) and not set(map(type, found)) <= {str}:  # much faster than checking each
        odd = next(index for index, text in enumerate(found) if type(text) is not str)
        raise TokenizerError(f"{key}[{odd}] must be a string, not {type(found[odd]).__name__}")
    texts = found if isinstance(found, StringTable) else StringTable.of(found)
    lengths = texts.lengths
    if (longest := int(lengths.max(initial=0))) > MAX_TOKEN_CHARS:
        where = f"{key}[{int(lengths.argmax())}]"
        raise TokenizerError(f"{where} has {longest} characters; at most {MAX_TOKEN_CHARS} are accepted")
    if (total := int(lengths.sum())) > MAX_TOTAL_CHARS:
        raise TokenizerError(f"{key} holds {total} characters; at most {MAX_TOTAL_CHARS} are accepted")
    return texts


def _types(keys: Mapping[str, Any], count: int) -> npt.NDArray[np.int8]:
    key = "tokenizer.ggml.token_type"
    values = _array(keys, key, MAX_TOKENS)
    if not values:
        return np.full(count, TokenType.NORMAL, np.int8)
    if len(values) != count:
        raise TokenizerError(f"{key} has {len(values)} entries but there are {count} tokens")
    try:
        unknown = set(values) - {0, *TokenType}
    except TypeError as exc:
        raise TokenizerError(f"{key} has an unknown token type: {exc}") from exc
    if unknown:
        raise TokenizerError(f"{key} has an unknown token type: {short(unknown.pop())}")
    types = np.array(values, np.int8)
    types[types == 0] = TokenType.NORMAL  # some writers store "undefined"
    return types


def _scores(keys: Mapping[str, Any], count: int) -> list[float]:
    key = "tokenizer.ggml.scores"
    values = _array(keys, key, MAX_TOKENS)
    if len(values) != count:
        raise TokenizerError(f"{key} has {len(values)} entries but there are {count} tokens")
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise TokenizerError(f"{key} must hold finite numbers")
    return [float(value) for value in values]


def _merges(keys: Mapping[str, Any]) -> StringTable:
    key = "tokenizer.ggml.merges"
    if keys.get(key) is None:
        raise TokenizerError(f"{key} is missing: a byte-level BPE tokenizer cannot work without merges")
    merges = _strings(keys, key, MAX_MERGES)
    if not merges.are_pairs():
        for rank, text in enumerate(merges):
            if text.count(" ") != 1 or text.startswith(" ") or text.endswith(" "):
                raise TokenizerError(f"{key}[{rank}] is {short(text)}, not two tokens with a space between")
    return merges


def _token_id(keys: Mapping[str, Any], key: str, count: int) -> int | None:
    value = keys.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TokenizerError(f"{key} must be an integer, not {type(value).__name__}")
    if value in (-1, 0xFFFFFFFF):  # some writers' "none"
        return None
    if not 0 <= value < count:
        raise TokenizerError(f"{key} is {value}, outside the {count} tokens")
    return value
