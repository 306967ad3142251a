"""The training data: requests that announce their story, and rows that hold whole documents."""

from __future__ import annotations

import re

import pytest
from chat import AGAIN, ANY, conversation
from documents import chunk, document, packed, special_id
from tokenizer import BOS, EOS, EOT, train
from tokenizers import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train(vocabulary=700, stories=300)


def test_a_request_is_about_the_story_that_follows() -> None:
    for seed in range(300):
        messages = conversation(seed)
        assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2)
        for asked, told in zip(messages[::2], messages[1::2], strict=True):
            if asked["content"] not in (*ANY, *AGAIN):
                names = re.findall(r"\b[A-Z]\w+", asked["content"][1:])
                assert set(names) <= set(re.findall(r"\w+", told["content"])), asked


def test_forms_of_the_documents(tokenizer: Tokenizer) -> None:
    bos, eos, eot = (special_id(tokenizer, token) for token in (BOS, EOS, EOT))
    documents = [document(tokenizer, index) for index in range(6)]
    assert [tokens[0] for tokens in documents] == [bos] * 6
    assert [tokens[-1] for tokens in documents] == [eos, eos, eos, eos, eot, eot]
    assert [eot in tokens[:-1] for tokens in documents] == [False] * 4 + [True] * 2
    assert all(tokens.count(bos) == 1 for tokens in documents)


def test_rows_hold_whole_documents() -> None:
    documents = [[0, *[number] * length] for number, length in enumerate((3, 9, 1, 4, 5, 2, 10), 1)]
    rows = packed(documents, width=10, filler=0).tolist()
    found = "".join(str(token) for row in rows for token in row)
    assert all("".join(map(str, tokens)) in found for tokens in documents[:-1])
    assert "7" not in found  # longer than a row
    assert sum(row.count(0) for row in rows) == 6 + 10 * len(rows) - sum(map(len, documents[:-1]))


def test_chunks_are_seeded(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    rows = chunk(path, 0, 30, 1025)
    assert rows.shape[1] == 1025
    assert (rows == chunk(path, 0, 30, 1025)).all()
    assert rows.shape != chunk(path, 30, 30, 1025).shape or (rows != chunk(path, 30, 30, 1025)).any()
