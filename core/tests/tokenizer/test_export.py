"""Tokenizers written for GGUF and for Hugging Face folders encode as the one they came from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer import Tokenizer, export, load_tokenizer
from bitnet_core.tokenizer.chat import BITNET_TEMPLATE
from bitnet_core.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from texts import byte_level_backend, gguf_keys, sentencepiece_keys, texts
from tokenizers import Tokenizer as Backend

SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]


def folder_keys(files: dict[str, str]) -> dict[str, Any]:
    """Return ModelSource.tokenizer of a folder with these files."""
    return {
        "kind": "hf",
        "tokenizer_json": files["tokenizer.json"],
        "tokenizer_config": json.loads(files["tokenizer_config.json"]),
        "generation_config": json.loads(files["generation_config.json"]),
    }


def assert_alike(one: Tokenizer, other: Tokenizer) -> None:
    assert (one.bos_id, one.eos_id, one.eos_ids, one.add_bos) == (
        other.bos_id,
        other.eos_id,
        other.eos_ids,
        other.add_bos,
    )
    for line in texts(150, seed=21):
        for special in (False, True):
            ids = one.encode(line, add_bos=True, parse_special=special)
            assert other.encode(line, add_bos=True, parse_special=special) == ids
        assert one.decode(ids) == other.decode(ids)


@pytest.mark.parametrize("rule", PRE_TOKENIZERS, ids=lambda rule: rule.name)
def test_byte_level_to_a_folder_and_back(rule: PreTokenizer) -> None:
    backend = byte_level_backend(list(rule.patterns), SPECIALS, rule.ignore_merges)
    keys = gguf_keys(backend, rule.name, bos=backend.token_to_id(SPECIALS[0]), eos=backend.token_to_id(SPECIALS[1]))
    keys["tokenizer.chat_template"] = "{% set BITNET = 1 %}"
    original = load_tokenizer(keys)
    files = export.folder_files(keys, context=64)
    folder = folder_keys(files)
    assert folder["tokenizer_config"]["chat_template"] == BITNET_TEMPLATE, "the placeholder is replaced"
    assert folder["generation_config"]["eos_token_id"] == sorted(original.eos_ids)
    assert_alike(original, load_tokenizer(folder))
    back = export.gguf_keys(folder, original.vocab_size + 7)
    assert back["tokenizer.ggml.pre"] == rule.name
    assert len(back["tokenizer.ggml.tokens"]) == len(back["tokenizer.ggml.token_type"]) == original.vocab_size + 7
    again = load_tokenizer({"kind": "gguf", **back})
    assert_alike(original, again)
    assert again.token_text(original.vocab_size) == f"[PAD{original.vocab_size}]"


def test_a_folder_that_asks_for_a_bos_token_gets_a_post_processor_that_adds_it() -> None:
    backend = byte_level_backend([r"\s?\S+|\s+"], SPECIALS)
    config = {"bos_token": SPECIALS[0], "add_bos_token": True}
    keys = {"kind": "hf", "tokenizer_json": backend.to_str(), "tokenizer_config": config}
    assert Backend.from_str(keys["tokenizer_json"]).encode("x").ids == backend.encode("x").ids
    written = export.folder_files(keys, context=64)["tokenizer.json"]
    assert Backend.from_str(written).encode("x").ids == load_tokenizer(keys).encode("x", add_bos=True)
    config["add_bos_token"] = False
    assert export.folder_files(keys, context=64)["tokenizer.json"] == keys["tokenizer_json"]


def test_sentencepiece_to_a_folder_and_back() -> None:
    keys = sentencepiece_keys()
    original = load_tokenizer(keys)
    folder = folder_keys(export.folder_files(keys, context=64))
    assert_alike(original, load_tokenizer(folder))
    back = export.gguf_keys(folder, original.vocab_size)
    assert back["tokenizer.ggml.model"] == "llama"
    assert back["tokenizer.ggml.token_type"].tolist() == keys["tokenizer.ggml.token_type"]
    assert_alike(original, load_tokenizer({"kind": "gguf", **back}))


def test_gguf_to_gguf_fills_in_what_is_missing() -> None:
    backend = byte_level_backend([r"\s?\S+|\s+"], SPECIALS)
    keys = gguf_keys(backend, None, bos=backend.token_to_id(SPECIALS[0]))
    keys["tokenizer.chat_template"] = "BITNETAssistant"
    del keys["tokenizer.ggml.token_type"]
    written = export.gguf_keys(keys, len(keys["tokenizer.ggml.tokens"]))
    assert written["tokenizer.ggml.pre"] == "default"
    assert written["tokenizer.ggml.token_type"].tolist() == [1] * len(keys["tokenizer.ggml.tokens"])
    assert written["tokenizer.ggml.bos_token_id"] == keys["tokenizer.ggml.bos_token_id"]


def test_a_pre_tokenizer_without_a_name_in_gguf_is_refused() -> None:
    backend = byte_level_backend([r"\s?\S+|\s+"], SPECIALS)
    with pytest.raises(TokenizerError, match="safetensors instead"):
        export.gguf_keys({"kind": "hf", "tokenizer_json": backend.to_str()}, 2000)
