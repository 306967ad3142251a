"""SPM tokenizers from GGUF keys, against a straightforward implementation of the algorithm."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from bitnet_core.tokenizer import Tokenizer, load_tokenizer
from texts import sentencepiece_keys, texts


def plain_spm(keys: dict[str, Any], text: str) -> list[int]:
    """Prepend a space, write spaces as U+2581, then join the neighbours whose union scores highest, leftmost first;
    characters that are no token become byte tokens."""
    if not text:
        return []
    types = keys["tokenizer.ggml.token_type"]
    tokens = {text: i for i, text in enumerate(keys["tokenizer.ggml.tokens"]) if types[i] == 1}
    scores = keys["tokenizer.ggml.scores"]
    parts = list((" " + text).replace(" ", "\u2581"))
    while True:
        unions = [left + right for left, right in pairwise(parts)]
        joined = [(scores[tokens[union]], -i) for i, union in enumerate(unions) if union in tokens]
        if not joined:
            break
        at = -max(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids: list[int] = []
    for part in parts:
        ids += [tokens[part]] if part in tokens else [3 + value for value in part.encode()]
    return ids


@pytest.fixture(scope="module")
def keys() -> dict[str, Any]:
    return sentencepiece_keys()


@pytest.fixture(scope="module")
def spm(keys: dict[str, Any]) -> Tokenizer:
    return load_tokenizer(keys)


def test_thousand_texts_encode_as_the_plain_algorithm(spm: Tokenizer, keys: dict[str, Any]) -> None:
    for line in texts(1000, seed=6):
        assert spm.encode(line, add_bos=False) == plain_spm(keys, line), line


def test_thousand_texts_come_back_from_their_ids(spm: Tokenizer) -> None:
    for line in texts(1000, seed=7):
        assert spm.decode(spm.encode(line, add_bos=True)) == line


def test_defaults_of_missing_keys(spm: Tokenizer) -> None:
    assert (spm.bos_id, spm.eos_id, spm.eos_ids, spm.add_bos) == (1, 2, {2}, True)


def test_no_space_prefix_on_request(keys: dict[str, Any]) -> None:
    spm = load_tokenizer({**keys, "tokenizer.ggml.add_space_prefix": False})
    assert spm.decode(spm.encode(" the", add_bos=False)) == " the"
    assert spm.encode("the", add_bos=False) != load_tokenizer(keys).encode("the", add_bos=False)


def test_control_and_byte_tokens_in_text_are_plain_characters(spm: Tokenizer) -> None:
    ids = spm.encode("<s></s><0x41><unk>", add_bos=False)
    assert not {0, 1, 2, 3 + 0x41} & set(ids)
    assert spm.decode(ids) == "<s></s><0x41><unk>"
    assert spm.encode("<s>", add_bos=False, parse_special=True) == [1]


def test_written_tokenizer_json_encodes_alike(spm: Tokenizer) -> None:
    again = load_tokenizer(
        {"kind": "hf", "tokenizer_json": spm.to_json(), "tokenizer_config": {"bos_token": "<s>", "eos_token": "</s>"}}
    )
    assert (again.bos_id, again.eos_ids) == (1, {2})
    for line in texts(200, seed=8):
        ids = again.encode(line, add_bos=False)
        assert ids == spm.encode(line, add_bos=False)
        assert again.decode(ids) == line
