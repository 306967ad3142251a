"""Seeded text of many kinds, and small vocabularies trained on it."""

from __future__ import annotations

import json
import random
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

_SAMPLE = """
the of and a to in is was he for it with as his on be at by I this had not are but from or have they you
Über größte français déjà señor niño ação łódź žluťoučký kůň Ελληνικά русский язык Привет мир עברית العربية
नमस्ते ภาษาไทย 你好世界 日本語のテキスト 한국어 don't we'll I'M SHE'S 3.14159 2024 1000000 ½ ² ٣٤
naïve e\u0301te\u0301 ﬁne 🙂 👩\u200d👩\u200d👧 🏳\ufe0f\u200d🌈 🇩🇪 \u200b \ufeff def return self.x[i] += 1; #include
fn(&mut x) => {} $PATH ~/bin \\n ``` <|x|> </s> <0x41> http://a.b/c?d=e&f=%20 A_B-C __init__ !== ... ?!?! (((
"""
_WORDS = _SAMPLE.split()
_SPACES = [" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\r\n", "\n    ", "\u00a0", "\u3000", ""]


def texts(count: int, seed: int) -> list[str]:
    """Return strings of words, scripts, code, emoji and white space, plus stray characters from all of Unicode."""
    draw = random.Random(seed)
    made = ["", " ", "\n", "a", " a", "a ", "  a  b  ", "'s", "'S", "Hi (Hi", "!!\n", "\n\n\n x", "12345 678"]
    while len(made) < count:
        parts: list[str] = []
        for _ in range(draw.randint(1, 24)):
            kind = draw.random()
            if kind < 0.85:
                parts.append(draw.choice(_WORDS))
            elif kind < 0.95:
                parts.append(chr(draw.choice([draw.randint(1, 0x2FF), draw.randint(0x370, 0xD7FF)])))
            else:
                parts.append(chr(draw.randint(0x10000, 0x1FFFF)) * draw.randint(1, 3))
            parts.append(draw.choice(_SPACES))
        made.append("".join(parts))
    return made


def byte_level_backend(patterns: list[str], specials: list[str], ignore_merges: bool = False) -> Backend:
    """Train a byte-level BPE on `texts`, in the form of a Hugging Face tokenizer.json."""
    backend = Backend(models.BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1200, show_progress=False, initial_alphabet=alphabet)
    backend.train_from_iterator(texts(600, seed=1), trainer)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return backend


def gguf_keys(backend: Backend, pre: str | None, **ids: int) -> dict[str, Any]:
    """Return the tokenizer.* keys of GGUF for a byte-level backend; ids: bos=..., eos=..."""
    document = json.loads(backend.to_str())
    vocabulary = backend.get_vocab(with_added_tokens=True)
    special = {entry["id"] for entry in document["added_tokens"]}
    keys: dict[str, Any] = {
        "kind": "gguf",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": sorted(vocabulary, key=vocabulary.__getitem__),
        "tokenizer.ggml.token_type": [3 if index in special else 1 for index in range(len(vocabulary))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in document["model"]["merges"]],
        **{f"tokenizer.ggml.{name}_token_id": value for name, value in ids.items()},
    }
    if pre is not None:
        keys["tokenizer.ggml.pre"] = pre
    return keys


def sentencepiece_keys(seed: int = 5) -> dict[str, Any]:
    """Return the tokenizer.* keys of a small SPM vocabulary: three specials, 256 bytes, then pieces with falling
    scores."""
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    lines = texts(600, seed)
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=900, show_progress=False, limit_alphabet=200))
    pieces = sorted(trained.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
    reserved = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    words = [text for text, _ in pieces if text not in reserved]
    return {
        "kind": "gguf",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": reserved + words,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        "tokenizer.ggml.scores": [0.0] * 259 + [float(-index) for index in range(len(words))],
    }
