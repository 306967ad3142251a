"""Streamed text equals the whole text, whatever the token borders."""

from __future__ import annotations

import random

import pytest
from bitnet_core.tokenizer import StreamDecoder, Tokenizer, load_tokenizer
from texts import byte_level_backend, gguf_keys, sentencepiece_keys, texts


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "sentencepiece":
        return load_tokenizer(sentencepiece_keys())
    return load_tokenizer(gguf_keys(byte_level_backend([r"\S+|\s+"], ["<|eot_id|>"]), "gpt-2"))


def byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """Return the token of each single byte."""
    known = {tokenizer.token_bytes(token): token for token in reversed(range(tokenizer.vocab_size))}
    return {value: known[bytes([value])] for value in range(256)}


def test_every_piece_is_whole_characters(tokenizer: Tokenizer) -> None:
    for line in texts(200, seed=11):
        ids = tokenizer.encode(line, add_bos=True)
        stream = StreamDecoder(tokenizer)
        pieces = [*(stream.push(token) for token in ids), stream.flush()]
        assert "".join(pieces).lstrip() == line.lstrip()
        assert "\ufffd" not in "".join(pieces)


def test_single_bytes_join_to_characters(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer)
    stream = StreamDecoder(tokenizer)
    pieces = [stream.push(ids[value]) for value in "aé🙂".encode()]
    assert pieces == ["a", "", "é", "", "", "", "🙂"]
    assert stream.flush() == ""


def test_random_bytes_equal_the_whole_decoding(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer)
    draw = random.Random(12)
    for _ in range(300):
        data = bytearray("".join(draw.choice("aé€🙂") for _ in range(8)).encode())
        for _ in range(draw.randint(0, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        data = data[: draw.randint(1, len(data))]
        stream = StreamDecoder(tokenizer)
        text = "".join([*(stream.push(ids[value]) for value in data), stream.flush()])
        assert text == data.decode("utf-8", "replace")


def test_an_unfinished_character_shows_at_the_end(tokenizer: Tokenizer) -> None:
    stream = StreamDecoder(tokenizer)
    assert [stream.push(byte_ids(tokenizer)[value]) for value in "€".encode()[:2]] == ["", ""]
    assert stream.flush() == "\ufffd"
    assert stream.push(byte_ids(tokenizer)[ord("b")]) == "b", "usable again after flush"
