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


def changed(keys: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """Return a folder's keys with other parts of tokenizer.json."""
    document = json.loads(keys["tokenizer_json"]) | parts
    return keys | {"tokenizer_json": json.dumps(document)}


@pytest.fixture(scope="module")
def spm_folder() -> dict[str, Any]:
    return folder_keys(export.folder_files(sentencepiece_keys(), context=64))


@pytest.fixture(scope="module")
def bpe_folder() -> dict[str, Any]:
    backend = byte_level_backend(list(PRE_TOKENIZERS[0].patterns), SPECIALS, ignore_merges=True)
    keys = gguf_keys(backend, "llama-bpe", bos=backend.token_to_id(SPECIALS[0]))
    return folder_keys(export.folder_files(keys, context=64))


def test_the_space_prefix_is_that_of_the_normalizer(spm_folder: dict[str, Any]) -> None:
    """InternLM2's kind: the decoder strips a space that the normalizer does not add."""
    assert export.gguf_keys(spm_folder, 1)["tokenizer.ggml.add_space_prefix"] is True
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    without = changed(spm_folder, normalizer={"type": "Sequence", "normalizers": [replace]})
    written = export.gguf_keys(without, 1)
    assert written["tokenizer.ggml.add_space_prefix"] is False
    folder, gguf = load_tokenizer(without), load_tokenizer({"kind": "gguf", **written})
    for text in texts(50, seed=3):
        assert folder.encode(text, add_bos=False) == gguf.encode(text, add_bos=False)


@pytest.mark.parametrize(
    "normalizer",
    [{"type": "Lowercase"}, {"type": "NFKC"}, {"type": "NFC"}, {"type": "NFD"}, {"type": "Prepend", "prepend": "x"}],
    ids=lambda normalizer: normalizer["type"],
)
def test_a_normalizer_without_a_place_in_gguf_is_refused(bpe_folder: dict[str, Any], normalizer: Any) -> None:
    export.gguf_keys(bpe_folder, 1)
    with pytest.raises(TokenizerError, match="GGUF has no"):
        export.gguf_keys(changed(bpe_folder, normalizer=normalizer), 1)


def test_a_prefix_before_the_first_word_alone_is_refused(spm_folder: dict[str, Any]) -> None:
    """Llama 2's modern form: Metaspace with prepend_scheme first."""
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    with pytest.raises(TokenizerError, match="GGUF has no place for that rule"):
        export.gguf_keys(changed(spm_folder, normalizer=None, pre_tokenizer=metaspace), 1)


def test_qwen_composes_text_from_both_forms() -> None:
    backend = byte_level_backend(list(PRE_TOKENIZERS[2].patterns), SPECIALS)
    gguf = gguf_keys(backend, "qwen2")
    folder = folder_keys(export.folder_files(gguf, context=64))
    assert json.loads(folder["tokenizer_json"])["normalizer"] == {"type": "NFC"}
    for keys in (gguf, folder):
        for warm in (False, True):
            tokenizer = load_tokenizer(keys, prepared=warm)
            assert tokenizer.encode("e\u0301", add_bos=False) == tokenizer.encode("é", add_bos=False)
    plain = load_tokenizer(gguf | {"tokenizer.ggml.pre": "deepseek-r1-qwen"})
    assert plain.encode("e\u0301", add_bos=False) != plain.encode("é", add_bos=False)


def test_a_template_that_does_not_parse_is_copied(bpe_folder: dict[str, Any]) -> None:
    broken = bpe_folder | {"tokenizer_config": bpe_folder["tokenizer_config"] | {"chat_template": "{% nonsense %}"}}
    assert export.gguf_keys(broken, 1)["tokenizer.chat_template"] == "{% nonsense %}"
    written = json.loads(export.folder_files(broken, 64)["tokenizer_config.json"])
    assert written["chat_template"] == "{% nonsense %}"


def test_a_template_for_tools_is_copied(bpe_folder: dict[str, Any]) -> None:
    source = bpe_folder | {"tool_template": "{{ tools }}"}
    written = export.gguf_keys(source, 0)
    assert written["tokenizer.chat_template.tool_use"] == "{{ tools }}"
    again = folder_keys(export.folder_files({"kind": "gguf", **written}, 64))
    assert export.gguf_keys(again, 0)["tokenizer.chat_template.tool_use"] == "{{ tools }}"


@pytest.mark.parametrize("add_eos", [False, True])
def test_the_token_that_ends_a_text_is_kept(add_eos: bool) -> None:
    backend = byte_level_backend([r"\s?\S+|\s+"], SPECIALS)
    keys = gguf_keys(backend, "gpt-2", eos=backend.token_to_id(SPECIALS[1])) | {
        "tokenizer.ggml.add_eos_token": add_eos,
        "tokenizer.ggml.add_bos_token": False,
    }
    end = (backend.token_to_id(SPECIALS[1]),) if add_eos else ()
    folder = folder_keys(export.folder_files(keys, 64))
    assert load_tokenizer(keys).text_end == load_tokenizer(folder).text_end == end
    assert load_tokenizer({"kind": "gguf", **export.gguf_keys(folder, 0)}).text_end == end
    assert not load_tokenizer(folder).add_bos


def test_added_tokens_of_a_folder_are_decoded_by_its_decoder(spm_folder: dict[str, Any]) -> None:
    """Gemma's runs of spaces are added tokens."""
    document = json.loads(spm_folder["tokenizer_json"])
    count = max(*document["model"]["vocab"].values(), *(entry["id"] for entry in document["added_tokens"])) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    stated = {str(count): flags | {"content": "\u2581\u2581\u2581\u2581"}}
    config = spm_folder["tokenizer_config"] | {"added_tokens_decoder": stated}
    tokenizer = load_tokenizer(spm_folder | {"tokenizer_config": config})
    assert tokenizer.vocab_size == count + 1, "a token that tokenizer_config.json alone states is added"
    assert tokenizer.token_bytes(count) == b"    "
