"""Tokenizers of hostile files are rejected with a clear error."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer import load_tokenizer
from bitnet_core.tokenizer.chat import ChatTemplate
from texts import byte_level_backend, gguf_keys, sentencepiece_keys

BACKEND = byte_level_backend([r"\s?\S+|\s+"], ["<|eot_id|>"])
BPE = gguf_keys(BACKEND, "llama-bpe", bos=1, eos=2)
SPM = sentencepiece_keys()


def folder(part: str, value: Any) -> str:
    """Return a tokenizer.json that is sound except for one part."""
    return json.dumps(json.loads(BACKEND.to_str()) | {part: value})


@pytest.mark.parametrize(
    ("keys", "change", "message"),
    [
        (BPE, {"kind": "other"}, "unknown kind"),
        (BPE, {"tokenizer.ggml.model": None}, "tokenizer.ggml.model is missing"),
        (BPE, {"tokenizer.ggml.model": "wordpiece"}, "only gpt2"),
        (BPE, {"tokenizer.ggml.model": 3}, "must be a string"),
        (BPE, {"tokenizer.ggml.pre": "martian"}, "unknown pre-tokenizer 'martian'"),
        (BPE, {"tokenizer.ggml.tokens": None}, "missing or empty"),
        (BPE, {"tokenizer.ggml.tokens": 7}, "must be an array"),
        (BPE, {"tokenizer.ggml.tokens": "abc"}, "must be an array"),
        (BPE, {"tokenizer.ggml.tokens": ["a", 1]}, r"tokens\[1\] must be a string"),
        (BPE, {"tokenizer.ggml.tokens": ["a" * 5000]}, "5000 characters"),
        (BPE, {"tokenizer.ggml.tokens": np.zeros(1 << 21, np.uint8)}, "at most 1048576"),
        (BPE, {"tokenizer.ggml.token_type": [1, 1]}, "has 2 entries"),
        (BPE, {"tokenizer.ggml.token_type": [9] * len(BPE["tokenizer.ggml.tokens"])}, "unknown token type"),
        (BPE, {"tokenizer.ggml.merges": None}, "merges is missing"),
        (BPE, {"tokenizer.ggml.merges": ["ab"]}, "not two tokens"),
        (BPE, {"tokenizer.ggml.merges": ["a "]}, "not two tokens"),
        (BPE, {"tokenizer.ggml.merges": ["a b", " b"]}, r"merges\[1\] is ' b', not two tokens"),
        (BPE, {"tokenizer.ggml.merges": ["a b c", "a"]}, r"merges\[0\] is 'a b c', not two tokens"),
        (BPE, {"tokenizer.ggml.merges": ["qqqq zzzz"]}, "not all in the vocabulary"),
        (BPE, {"tokenizer.ggml.eos_token_id": 10**6}, "outside the"),
        (BPE, {"tokenizer.ggml.eos_token_id": "2"}, "must be an integer"),
        (BPE, {"tokenizer.ggml.add_bos_token": 1}, "must be a bool"),
        (SPM, {"tokenizer.ggml.scores": None}, "scores has 0 entries"),
        (SPM, {"tokenizer.ggml.scores": [float("nan")] * len(SPM["tokenizer.ggml.tokens"])}, "finite"),
        ({}, {"kind": "hf"}, "no tokenizer.json"),
        ({}, {"kind": "hf", "tokenizer_json": "{"}, "not JSON"),
        ({}, {"kind": "hf", "tokenizer_json": "[" * 10**6}, "not JSON"),
        ({}, {"kind": "hf", "tokenizer_json": "[]"}, "object"),
        ({}, {"kind": "hf", "tokenizer_json": "{}"}, "only BPE"),
        ({}, {"kind": "hf", "tokenizer_json": folder("model", {"type": "WordPiece"})}, "WordPiece"),
        ({}, {"kind": "hf", "tokenizer_json": folder("model", {"vocab": {"a": 2**31}})}, "ids from 0"),
        ({}, {"kind": "hf", "tokenizer_json": folder("model", {"vocab": {"a": 0}})}, "merges"),
        ({}, {"kind": "hf", "tokenizer_json": folder("model", {"continuing_subword_prefix": "\0"})}, "subword_prefix"),
        ({}, {"kind": "hf", "tokenizer_json": folder("decoder", {"type": "WordPiece"})}, "WordPiece"),
        ({}, {"kind": "hf", "tokenizer_json": folder("decoder", None)}, "has no decoder: not byte-level"),
        ({}, {"kind": "hf", "tokenizer_json": folder("normalizer", {"type": "Precompiled"})}, "Precompiled"),
        ({}, {"kind": "hf", "tokenizer_json": folder("pre_tokenizer", {"type": "Split"})}, "cannot be loaded"),
        ({}, {"kind": "hf", "tokenizer_json": '{"added_tokens": [1]}'}, "without content"),
        ({}, {"kind": "hf", "tokenizer_json": BACKEND.to_str(), "tokenizer_config": []}, None),
        ({}, {"kind": "hf", "tokenizer_json": BACKEND.to_str(), "tokenizer_config": {"bos_token": 5}}, "as int"),
    ],
)
def test_refused_by_name(keys: dict[str, Any], change: dict[str, Any], message: str | None) -> None:
    if message is None:  # an empty list counts as no configuration
        assert load_tokenizer({**keys, **change}).vocab_size
        return
    with pytest.raises(TokenizerError, match=message) as caught:
        load_tokenizer({**keys, **change})
    assert caught.value.exit_code == 4


def test_a_vocabulary_that_explodes_into_cuts_is_refused() -> None:
    tokens = ["a" * 2000 + str(index) for index in range(4000)]
    keys = {**SPM, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 4000}
    with pytest.raises(TokenizerError, match="looks damaged"):
        load_tokenizer({**keys, "tokenizer.ggml.scores": [0.0] * 4000})


@pytest.mark.parametrize("kind", ["gguf", "spm", "hf"])
def test_seeded_mutations_end_in_a_tokenizer_or_a_clear_error(kind: str) -> None:
    draw = random.Random(14)
    strange: list[Any] = [None, -1, 0, 2**31, 2**64, 1.5, "", "x", [], [None], {}, True, float("nan"), "\x00", "a b"]
    original = {"gguf": BPE, "spm": SPM, "hf": json.loads(BACKEND.to_str())}[kind]
    refused = 0
    for _ in range(150):
        keys = json.loads(json.dumps(original))
        spot: Any = keys
        while isinstance(spot, dict | list) and spot:
            names = list(spot) if isinstance(spot, dict) else range(len(spot))
            name = draw.choice(list(names))
            if not isinstance(spot[name], dict | list) or not spot[name] or draw.random() < 0.3:
                spot[name] = draw.choice(strange)
                break
            spot = spot[name]
        try:
            source = {"kind": "hf", "tokenizer_json": json.dumps(keys)} if kind == "hf" else keys
            tokenizer = load_tokenizer(source)
            tokenizer.decode(tokenizer.encode("Hello wörld <|eot_id|> 123", add_bos=True))
            ChatTemplate(tokenizer).chat_tokens([{"role": "user", "content": "x"}])
        except TokenizerError:
            refused += 1
    assert 10 < refused < 150
