"""Pre-tokenizers of byte-level BPE: the regular expressions of the names in GGUF's tokenizer.ggml.pre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bitnet_hal.errors import short

from bitnet_core.errors import TokenizerError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A pre-tokenizer: text is split by each pattern in turn; matches and the gaps between them are pieces.

    nfc: text is composed first (Unicode's NFC), as by the normalizer of the tokenizer.json that the models were trained
    with. GGUF has no key for it, and llama.cpp does not do it.
    """

    name: str  # GGUF's name
    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is itself a token is not merged
    add_bos: bool = False
    nfc: bool = False


_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3: Final = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35: Final = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_FALCON: Final = r"[\p{P}\$\+<=>\^~\|`]+"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD: Final = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    r"[一-龥\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_CASED: Final = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-"
    "\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-"
    "\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80"
    "-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-"
    "\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters of the expression of DeepSeek LLM's tokenizer.json."""
_BLOOM: Final = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_SEED: Final = _CONTRACTIONS + (r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+")

_NOT_HAN: Final = r"&&[^\p{Han}]]"
_UPPER_NOT_HAN: Final = _UPPER.removesuffix("]") + _NOT_HAN
_LOWER_NOT_HAN: Final = _LOWER.removesuffix("]") + _NOT_HAN
_KIMI_K2: Final = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_NOT_HAN}*{_LOWER_NOT_HAN}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_NOT_HAN}+{_LOWER_NOT_HAN}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O: Final = _WORD % (_CONTRACTIONS + "?", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _TAIL
_BLANKS: Final = "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
_EXAONE_MOE: Final = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}(?:(?! (?!\p{L}))[\p{L}\p{M} ])*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_ASIAN: Final = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU: Final = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)

PRE_TOKENIZERS: Final = (
    PreTokenizer("llama-bpe", (_LLAMA3,), ignore_merges=True, add_bos=True),
    PreTokenizer("gpt-2", (_GPT2 + r"|\s+",)),
    PreTokenizer("qwen2", (_QWEN2,), nfc=True),
    PreTokenizer("qwen35", (_QWEN35,), nfc=True),
    PreTokenizer("falcon3", (_FALCON, _GPT2, r"[0-9]")),
    PreTokenizer("falcon", (_FALCON, _GPT2, r"[0-9][0-9][0-9]")),
    PreTokenizer("default", (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    PreTokenizer("deepseek-r1-qwen", (_QWEN2,)),
    PreTokenizer("dbrx", (_LLAMA3,)),
    PreTokenizer("smollm", (r"\p{N}", _GPT2)),
    PreTokenizer("deepseek-coder", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    PreTokenizer(
        "deepseek-llm",
        (
            r"[\r\n]",
            rf"\s?[{_CASED}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        ),
    ),
    PreTokenizer("deepseek-v3", _DEEPSEEK3),
    PreTokenizer("bloom", (_BLOOM,)),
    PreTokenizer("viking", (_BLOOM, r"\p{N}")),
    PreTokenizer("tekken", (_WORD % ("", "") + r"|\p{N}" + _TAIL,), ignore_merges=True, add_bos=True),
    PreTokenizer("gpt-4o", (_GPT4O,)),
    PreTokenizer("granite-embed-multi-97m", (_GPT4O,), ignore_merges=True),
    PreTokenizer("tiny_aya", (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    PreTokenizer("youtu", (_YOUTU, _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}")), ignore_merges=True),
    PreTokenizer("kimi-k2", (_KIMI_K2,)),
    PreTokenizer("superbpe", (r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    PreTokenizer("jais-2", (_LLAMA3.removesuffix(r"|\s+(?!\S)|\s+") + _BLANKS + r"|\s{1,2}(?!\S)|\s{1}",)),
    PreTokenizer("exaone-moe", (_EXAONE_MOE,)),
    PreTokenizer("laguna", (r"[^\n]+|[\n]+", _QWEN2)),
    PreTokenizer("afmoe", (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _ASIAN, _DEEPSEEK3[2])),
    PreTokenizer(
        "chameleon",
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    PreTokenizer("seed-coder", (_SEED,)),
    PreTokenizer("ufakzeka", (_QWEN2.removeprefix(_CONTRACTIONS + "|"),)),
    PreTokenizer("minicpm5", (r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")), ignore_merges=True),
)
"""The rules of llama.cpp (src/llama-vocab.cpp), with the expressions of the models' own tokenizer.json, or equal ones
without repetitions of repetitions.

falcon3 is the rule of bitnet.cpp, which introduced the name: digits are split, and bos is not added. llama.cpp uses
llama-bpe for the same name. It is unknown which one Falcon3's models were trained with; the tokenizer.json of a folder
states it.
"""

_ALIASES: Final = {
    alias: name
    for name, aliases in {
        "llama-bpe": ("llama3", "llama-v3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        "gpt-2": (
            *("gpt2", "mpt", "olmo", "phi-2", "gpt-neox", "jais", "trillion", "granite-docling", "exaone4"),
            *(
                "jina-es",
                "jina-de",
                "jina-v2-es",
                "jina-v2-de",
                "gigachat",
                "mellum",
                "a.x-4.0",
                "modern-bert",
                "jina-v1-en",
            ),
        ),
        "deepseek-r1-qwen": (
            "stablelm2",
            "kormo",
            "hunyuan",
            "megrez",
            "solar-open",
            "grok-2",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
            "f2llmv2",
        ),
        "falcon3": ("falcon_e", "falcon-e"),
        "dbrx": ("smaug-bpe", "chatglm-bpe", "glm4"),
        "tiny_aya": ("cohere2moe",),
        "smollm": ("starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        "deepseek-v3": ("hunyuan-dense", "joyai-llm", "hy_v4"),
        "bloom": ("poro-chat", "gpt3-finnish"),
        "gpt-4o": ("llama4", "kanana2", "talkie", "minimax-m2"),
    }.items()
    for alias in aliases
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
        raise TokenizerError(
            f"unknown pre-tokenizer {short(pre)} (tokenizer.ggml.pre): without its rule the text would be split "
            f"wrongly; use the model's folder with its tokenizer.json. Known: {names}"
        )
    return rule
