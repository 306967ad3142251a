"""Byte-level BPE from GGUF keys and from tokenizer.json equals the library's own encoding."""

from __future__ import annotations

from typing import Any

import pytest
from bitnet_core.tokenizer import Tokenizer, load_tokenizer
from texts import byte_level_backend, gguf_keys, texts
from tokenizers import normalizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
CASES: list[tuple[str, list[str], bool]] = [
    ("llama-bpe", [LLAMA3], True),
    ("gpt-2", [GPT2 + r"|\s+"], False),
    ("qwen2", [QWEN2], False),
    ("falcon3", [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9]"], False),
    ("falcon_e", [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9]"], False),
    ("deepseek-r1-qwen", [QWEN2], False),
    ("smollm", [r"\p{N}", GPT2], False),
    ("command-r", [r"\p{N}", GPT2], False),
    ("gpt-neox", [GPT2 + r"|\s+"], False),
    ("default", [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"], False),
]
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]


def keys_for(pre: str | None = "llama-bpe") -> dict[str, Any]:
    backend = byte_level_backend([LLAMA3], SPECIALS, ignore_merges=True)
    return gguf_keys(backend, pre, bos=backend.token_to_id(SPECIALS[0]), eos=backend.token_to_id(SPECIALS[1]))


@pytest.fixture(scope="module")
def llama3() -> Tokenizer:
    return load_tokenizer(keys_for())


@pytest.mark.parametrize(("pre", "patterns", "ignore_merges"), CASES, ids=[case[0] for case in CASES])
def test_thousand_texts_encode_as_the_library_does(pre: str, patterns: list[str], ignore_merges: bool) -> None:
    backend = byte_level_backend(patterns, SPECIALS, ignore_merges)
    ours = load_tokenizer(gguf_keys(backend, pre))
    if pre in ("qwen2", "qwen35"):  # Qwen's tokenizer.json has this normalizer, for which GGUF has no key
        backend.normalizer = normalizers.NFC()
    lines = texts(1000, seed=2)
    assert [ours.encode(line, add_bos=False) for line in lines] == [
        encoding.ids for encoding in backend.encode_batch(lines, add_special_tokens=False)
    ]


def test_thousand_texts_come_back_from_their_ids(llama3: Tokenizer) -> None:
    lines = texts(1000, seed=3)
    assert [llama3.decode(llama3.encode(line, add_bos=True)) for line in lines] == lines


def test_tokenizer_json_encodes_as_the_library_does() -> None:
    backend = byte_level_backend([LLAMA3], SPECIALS)
    backend.enable_truncation(5)  # a file may say so; a prompt is never cut
    ours = load_tokenizer({"kind": "hf", "tokenizer_json": backend.to_str(), "tokenizer_config": {}})
    backend.no_truncation()
    lines = texts(1000, seed=4)
    assert [ours.encode(line, add_bos=False) for line in lines] == [
        encoding.ids for encoding in backend.encode_batch(lines, add_special_tokens=False)
    ]
    assert [ours.decode(ours.encode(line, add_bos=False)) for line in lines] == lines


def test_written_tokenizer_json_encodes_alike(llama3: Tokenizer) -> None:
    config = {"bos_token": SPECIALS[0], "eos_token": {"content": SPECIALS[1]}, "add_bos_token": True}
    again = load_tokenizer({"kind": "hf", "tokenizer_json": llama3.to_json(), "tokenizer_config": config})
    assert (again.bos_id, again.eos_id, again.add_bos, again.eos_ids) == (
        llama3.bos_id,
        llama3.eos_id,
        llama3.add_bos,
        llama3.eos_ids,
    )
    lines = texts(200, seed=9)
    assert [again.encode(line, add_bos=True) for line in lines] == [llama3.encode(line, add_bos=True) for line in lines]


def test_ids_and_stops(llama3: Tokenizer) -> None:
    first = llama3.vocab_size - 3
    assert (llama3.bos_id, llama3.eos_id) == (first, first + 1)
    assert llama3.eos_ids == {first + 1, first + 2}, "end of text and end of turn both stop"
    assert llama3.add_bos, "llama-bpe begins with bos unless the file says no"
    assert llama3.encode("", add_bos=True) == [first]
    assert llama3.token_text(first) == "<|begin_of_text|>"
    assert llama3.token_text(10**9) == ""
    assert llama3.token_bytes(10**9) == b"", "padding ids of the model are silent"


def test_control_tokens_in_text_are_plain_characters(llama3: Tokenizer) -> None:
    text = "Hi<|eot_id|> <|end_of_text|>"
    plain = llama3.encode(text, add_bos=False)
    assert not set(plain) & set(llama3.specials.values())
    assert llama3.decode(plain) == text
    parsed = llama3.encode(text, add_bos=False, parse_special=True)
    assert [token for token in parsed if token in llama3.eos_ids] == [
        llama3.specials["<|eot_id|>"],
        llama3.specials["<|end_of_text|>"],
    ]
    assert llama3.decode(parsed) == "Hi "


def test_a_control_token_spelled_like_a_word_cannot_be_reached_by_merging() -> None:
    backend = byte_level_backend([LLAMA3], [], ignore_merges=True)
    keys = gguf_keys(backend, "llama-bpe")
    word = keys["tokenizer.ggml.tokens"].index("the")
    keys["tokenizer.ggml.token_type"][word] = 3
    ours = load_tokenizer(keys)
    assert backend.encode("the").ids == [word]
    assert word not in ours.encode("the", add_bos=False)
    assert ours.decode(ours.encode("the", add_bos=False)) == "the"


@pytest.mark.parametrize("sign", ["size", "token"])
def test_missing_pre_of_a_llama3_vocabulary_means_llama_bpe(sign: str) -> None:
    keys = keys_for(pre=None)
    tokens = keys["tokenizer.ggml.tokens"]
    count = 128256 if sign == "size" else 128300
    tokens += [f"[PAD{index}]" for index in range(len(tokens), count)]
    if sign == "token":
        tokens[128000] = "<|begin_of_text|>"
        tokens[keys["tokenizer.ggml.bos_token_id"]] = "[OLD]"
    keys["tokenizer.ggml.token_type"] += [5] * (count - len(keys["tokenizer.ggml.token_type"]))
    ours = load_tokenizer(keys)
    reference = byte_level_backend([LLAMA3], [], ignore_merges=True)
    for text in ["Hi (Hi", "\n\n", "!!\n", "'S", "12345"]:
        assert ours.encode(text, add_bos=False) == reference.encode(text).ids


def test_missing_pre_of_another_vocabulary_means_default() -> None:
    ours = load_tokenizer(keys_for(pre=None))
    reference = byte_level_backend(CASES[-1][1], [])
    pieces = [piece for piece, _ in reference.pre_tokenizer.pre_tokenize_str("Hi (Hi")]
    assert pieces == ["Hi", "Ġ", "(", "Hi"]
    assert [ours.token_text(token) for token in ours.encode(" (", add_bos=False)] == ["Ġ", "("]


def test_lone_surrogates_are_replaced(llama3: Tokenizer) -> None:
    assert llama3.decode(llama3.encode("a\udcffb", add_bos=False)) == "a\ufffdb"
