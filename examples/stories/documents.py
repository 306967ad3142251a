"""The training data: stories, requests and conversations as token lists, packed into rows."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
from chat import conversation, render
from generate import story
from tokenizer import BOS, EOS, EOT
from tokenizers import Tokenizer

HELD_OUT = 10_000_000  # seeds from here on are never trained on
PROMPT = "Assistant: "


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a special token, which every tokenizer of ours has."""
    return int(tokenizer.encode(token, add_special_tokens=False).ids[0])


def encoded(tokenizer: Tokenizer, text: str, begin: bool = True) -> list[int]:
    """Return the token ids of a text, after BOS if it begins a document; the batch method is twice as fast, even for
    one text."""
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=begin)[0].ids)


def document(tokenizer: Tokenizer, index: int) -> list[int]:
    """Return the token ids of document `index`, from BOS to the token that ends it.

    Of six documents three are stories, one is a request with its story, and two have the chat form. A request is
    encoded separately, as it is when a user sends one.
    """
    form = index % 6
    if form < 3:
        return [*encoded(tokenizer, story(index).text), special_id(tokenizer, EOS)]
    if form == 3:
        request, answer = conversation(index)[:2]
        prompt, told, end = request["content"], "\n\n" + answer["content"], EOS
    else:
        *asked, answer = conversation(index)
        prompt, told, end = render(asked) + PROMPT, answer["content"], EOT
    return [*encoded(tokenizer, prompt), *encoded(tokenizer, told, begin=False), special_id(tokenizer, end)]


def packed(documents: list[list[int]], width: int, filler: int) -> npt.NDArray[np.uint16]:
    """Pack whole documents into rows [rows, width], the longest first, each into the fullest row that has room for it.

    Documents longer than a row are skipped. Empty places hold `filler`.
    """
    rows: list[list[int]] = []
    with_room: list[list[list[int]]] = [[] for _ in range(width + 1)]  # by the number of free places
    for tokens in sorted(documents, key=len, reverse=True):
        if len(tokens) > width:
            continue
        room = next((room for room in range(len(tokens), width) if with_room[room]), width)
        if room == width:
            rows.append([])
        row = with_room[room].pop() if room < width else rows[-1]
        row.extend(tokens)
        with_room[width - len(row)].append(row)
    return np.array([row + [filler] * (width - len(row)) for row in rows], np.uint16)


@functools.cache
def _tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def chunk(path: Path, first: int, count: int, width: int) -> npt.NDArray[np.uint16]:
    """Return documents `first` to `first + count` in shuffled rows; `path` is the tokenizer's."""
    tokenizer = _tokenizer(path)
    documents = [document(tokenizer, index) for index in range(first, first + count)]
    rows = packed(documents, width, special_id(tokenizer, BOS))
    order = list(range(len(rows)))
    random.Random(f"rows {first}").shuffle(order)
    return rows[order]


def held_out(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Return the first `count` held-out stories, with BOS and EOS."""
    seeds = range(HELD_OUT, HELD_OUT + count)
    return [[*encoded(tokenizer, story(seed).text), special_id(tokenizer, EOS)] for seed in seeds]
