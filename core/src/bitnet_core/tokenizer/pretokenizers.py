"""The splits of text before byte-level BPE: the regular expressions behind GGUF's tokenizer.ggml.pre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bitnet_hal.errors import short

from bitnet_core.errors import TokenizerError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A pre-tokenizer: text is split by each pattern in turn; matches and the gaps between them are pieces."""

    name: str  # GGUF's name
    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is itself a token is not merged
    add_bos: bool = False


_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35: Final = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")

PRE_TOKENIZERS: Final = (
    PreTokenizer("llama-bpe", (_LLAMA3,), ignore_merges=True, add_bos=True),
    PreTokenizer("gpt-2", (_GPT2 + r"|\s+",)),
    PreTokenizer("qwen2", (_QWEN2,)),
    PreTokenizer("qwen35", (_QWEN35,)),
    PreTokenizer("falcon3", (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9]")),
    PreTokenizer("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    PreTokenizer("default", (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
)

_ALIASES: Final = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "gpt2": "gpt-2",
    "mpt": "gpt-2",
    "olmo": "gpt-2",
    "phi-2": "gpt-2",
    "deepseek-r1-qwen": "qwen2",
    "stablelm2": "qwen2",
    "falcon_e": "falcon3",
    "falcon-e": "falcon3",
}
_BY_NAME: Final = {rule.name: rule for rule in PRE_TOKENIZERS}


def pre_tokenizer(pre: str | None, tokens: Sequence[str]) -> PreTokenizer:
    """Return the pre-tokenizer of a file.

    Microsoft's 2B-4T GGUF names none although its vocabulary is Llama 3's: without `pre`, that vocabulary gets
    llama-bpe and any other gets the "default" rule of bitnet.cpp.
    """
    if pre is None:
        llama3 = len(tokens) == 128256 or (len(tokens) > 128000 and tokens[128000] == "<|begin_of_text|>")
        return _BY_NAME["llama-bpe" if llama3 else "default"]
    rule = _BY_NAME.get(_ALIASES.get(pre, pre))
    if rule is None:
        names = ", ".join(sorted({*_BY_NAME, *_ALIASES}))
        raise TokenizerError(f"unknown pre-tokenizer {short(pre)} (tokenizer.ggml.pre); known: {names}")
    return rule
