"""What the model reads: stories as token lists, nine plain ones and then one in the chat form."""

from __future__ import annotations

import torch
from chat import conversation, render
from generate import story
from tokenizer import EOS, EOT
from tokenizers import Tokenizer
from torch import Tensor

HELD_OUT = 10_000_000  # seeds from here on are never trained on
PROMPT = "Assistant: "


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of a special token, which every tokenizer of ours has."""
    return int(tokenizer.encode(token, add_special_tokens=False).ids[0])


def document(tokenizer: Tokenizer, index: int) -> list[int]:
    """Token ids of document `index`, from BOS to the token that ends it."""
    if index % 10 != 9:
        return [*tokenizer.encode(story(index).text).ids, special_id(tokenizer, EOS)]
    *asked, answer = conversation(index)
    # The prompt is encoded alone because that is what a chat does: its last space is a token of its own.
    prompt = tokenizer.encode(render(asked) + PROMPT).ids
    told = tokenizer.encode(answer["content"], add_special_tokens=False).ids
    return [*prompt, *told, special_id(tokenizer, EOT)]


def held_out(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """The first `count` held-out stories, with BOS and EOS."""
    seeds = range(HELD_OUT, HELD_OUT + count)
    return [[*tokenizer.encode(story(seed).text).ids, special_id(tokenizer, EOS)] for seed in seeds]


def padded(documents: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Inputs and targets [documents, longest - 1]; padded targets are -1."""
    longest = max(map(len, documents)) - 1
    tokens = torch.zeros(len(documents), longest, dtype=torch.long)
    targets = torch.full((len(documents), longest), -1)
    for row, ids in enumerate(documents):
        tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        targets[row, : len(ids) - 1] = torch.tensor(ids[1:])
    return tokens, targets
