"""The first text is encoded by a part of the vocabulary, to the same ids as by the whole."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer import Tokenizer, load_tokenizer, tokenizer
from bitnet_core.tokenizer.gguf import MAX_PART
from bitnet_core.tokenizer.pretokenizers import PRE_TOKENIZERS
from texts import byte_level_backend, gguf_keys, sentencepiece_keys, texts

SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<own>"]


def byte_level_keys(pre: str) -> dict[str, Any]:
    rule = next(rule for rule in PRE_TOKENIZERS if rule.name == pre)
    keys = gguf_keys(byte_level_backend(list(rule.patterns), SPECIALS), pre, bos=1200, eos=1201)
    keys["tokenizer.ggml.token_type"][-1] = 4  # <own>
    return keys


def spm_keys(**changes: Any) -> dict[str, Any]:
    """Return SPM keys with a user-defined token, and tokens that appear twice with different scores."""
    keys = sentencepiece_keys()
    tokens = keys["tokenizer.ggml.tokens"]
    again = random.Random(3).sample(range(259, len(tokens)), 60)
    keys["tokenizer.ggml.tokens"] = [*tokens, "<own>", *(tokens[token] for token in again)]
    keys["tokenizer.ggml.token_type"] += [4, *[1] * len(again)]
    keys["tokenizer.ggml.scores"] += [0.0, *(-float(at) for at in range(len(again)))]
    return keys | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def lines(seed: int) -> list[str]:
    """Return texts of all kinds, some with special tokens in them."""
    draw = random.Random(seed)
    made = texts(70, seed)
    for _ in range(30):
        parts = draw.sample(made, 2)
        special = draw.choice([*SPECIALS, "<s>", "</s>", "<unk>", "<0x41>"])
        made.append(special.join([parts[0] + draw.choice(["", " ", "   "]), draw.choice(["", " ", "\n"]) + parts[1]]))
    return made


def fresh(keys: dict[str, Any]) -> Tokenizer:
    return load_tokenizer(keys, prepared=False)


def made_whole(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with each whole tokenizer built from now on."""
    made: list[bool] = []
    prepared = tokenizer.Tokenizer._prepared

    def counted(self: Tokenizer) -> Any:
        made.append(True)
        return prepared(self)

    monkeypatch.setattr(tokenizer.Tokenizer, "_prepared", counted)
    return made


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("pre", [rule.name for rule in PRE_TOKENIZERS])
def test_byte_level(pre: str, special: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = byte_level_keys(pre)
    whole = load_tokenizer(keys)
    expected = [whole.encode(line, add_bos=True, parse_special=special) for line in lines(11)]
    wholes = made_whole(monkeypatch)
    for line, ids in zip(lines(11), expected, strict=True):
        assert fresh(keys).encode(line, add_bos=True, parse_special=special) == ids, line
    assert not wholes


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("prefix", [None, False])
def test_sentencepiece(prefix: bool | None, special: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = spm_keys(add_space_prefix=prefix)
    whole = load_tokenizer(keys)
    expected = [whole.encode(line, add_bos=True, parse_special=special) for line in lines(12)]
    wholes = made_whole(monkeypatch)
    for line, ids in zip(lines(12), expected, strict=True):
        assert fresh(keys).encode(line, add_bos=True, parse_special=special) == ids, line
    assert len(wholes) < 80, "many have a character that is no token, not all"


def test_merges_of_byte_tokens_and_of_the_unknown_one_take_all() -> None:
    keys = spm_keys()
    keys["tokenizer.ggml.tokens"] = [*keys["tokenizer.ggml.tokens"], "<0xE2><0x82>", "<0xE2><0x82><0xAC>", "<0xAC>s"]
    keys["tokenizer.ggml.token_type"] = [*keys["tokenizer.ggml.token_type"], 1, 1, 1]
    keys["tokenizer.ggml.scores"] = [*keys["tokenizer.ggml.scores"], 9.0, 8.0, 7.0]
    ids = fresh(keys).encode("a € s", add_bos=False)
    assert ids == load_tokenizer(keys).encode("a € s", add_bos=False)
    assert len(keys["tokenizer.ggml.tokens"]) - 2 in ids


def test_a_byte_without_a_token_takes_all() -> None:
    keys = byte_level_keys("llama-bpe")
    keys["tokenizer.ggml.unknown_token_id"] = 500
    keys["tokenizer.ggml.tokens"][keys["tokenizer.ggml.tokens"].index("x")] = "[x]"
    keys["tokenizer.ggml.merges"] = []
    for line in ("xylophone", "a x b", "plain"):
        assert fresh(keys).encode(line, add_bos=False) == load_tokenizer(keys).encode(line, add_bos=False)


def test_a_space_before_each_piece_takes_all() -> None:
    keys = byte_level_keys("gpt-2") | {"tokenizer.ggml.add_space_prefix": True}
    whole = load_tokenizer(keys)
    for line in lines(13):
        assert fresh(keys).encode(line, add_bos=False) == whole.encode(line, add_bos=False)


def test_merges_that_are_there_twice_keep_their_rank() -> None:
    keys = byte_level_keys("qwen2")
    keys["tokenizer.ggml.merges"] += random.Random(5).sample(keys["tokenizer.ggml.merges"], 300)
    whole = load_tokenizer(keys)
    for line in lines(14):
        assert fresh(keys).encode(line, add_bos=False) == whole.encode(line, add_bos=False)


@pytest.mark.parametrize("size", [MAX_PART, MAX_PART + 1])
def test_long_texts(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, line = byte_level_keys("llama-bpe"), " ".join(lines(15) * 5)[:size]
    expected = load_tokenizer(keys).encode(line, add_bos=True)
    wholes = made_whole(monkeypatch)
    assert fresh(keys).encode(line, add_bos=True) == expected
    assert bool(wholes) == (size > MAX_PART)


def test_other_texts_are_encoded_by_all_of_it() -> None:
    keys, some = byte_level_keys("llama-bpe"), lines(16)
    whole, ours = load_tokenizer(keys), fresh(keys)
    for line in some:
        assert ours.encode(line, add_bos=False) == whole.encode(line, add_bos=False)
    assert ours.to_json() == whole.to_json()


def test_what_is_wrong_with_merges_is_told_when_all_are_needed() -> None:
    keys = byte_level_keys("llama-bpe")
    keys["tokenizer.ggml.merges"] += ["qqqq zzzz"]
    ours = fresh(keys)
    assert ours.decode(ours.encode("Hello", add_bos=False)) == "Hello"
    with pytest.raises(TokenizerError, match="not all in the vocabulary"):
        ours.encode("again", add_bos=False)
    with pytest.raises(TokenizerError, match="not all in the vocabulary"):
        fresh(keys).prepare()
