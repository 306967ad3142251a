"""Makes the golden test data: greedy continuations by transformers, in float32, from the packed safetensors.

    python golden.py --folder build/hf --out ../../core/tests/golden/stories.json

Prompts are beginnings of held-out stories, of five lengths: the first of each whose 64 tokens are all chosen with a
distance of at least 0.1 between the first and the second logit, so that another order of summation cannot change the
text.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from documents import HELD_OUT, PROMPT
from generate import story
from shipped import load
from tokenizer import EOT

TOKENS = 64
MARGIN = 0.1
BATCH = 64
CANDIDATES = 3000


class Continuation(NamedTuple):
    prompt: list[int]
    tokens: list[int]
    margin: float  # the smallest distance of first and second logit


def beginnings(tokenizer: Any, length: int, chat: bool) -> Iterator[list[int]]:
    """The first `length` tokens of held-out stories, told in a chat or not, where the text gives these tokens again."""
    for seed in range(HELD_OUT, HELD_OUT + CANDIDATES):
        told = story(seed)
        asked = f"User: Tell me a story about {told.hero} the {told.kind}.{EOT}{PROMPT}" if chat else ""
        ids = tokenizer.encode(asked + told.text)[:length]
        if tokenizer.encode(tokenizer.decode(ids[1:])) == ids:
            yield ids


@torch.inference_mode()
def greedy(model: Any, prompts: list[list[int]], stop: list[int]) -> list[Continuation]:
    """Continuations of equally long prompts, without those that fall below the margin or end."""
    length = len(prompts[0])
    rows = torch.tensor(prompts, device=model.device)
    smallest = torch.full((len(prompts),), float("inf"), device=model.device)
    ends = torch.tensor(stop, device=model.device)
    for _ in range(TOKENS):
        best, tokens = model(rows, use_cache=False, logits_to_keep=1).logits[:, -1].topk(2)
        smallest = smallest.minimum(best[:, 0] - best[:, 1])
        kept = (smallest >= MARGIN) & ~torch.isin(tokens[:, 0], ends)
        rows, smallest = torch.cat((rows, tokens[:, :1]), 1)[kept], smallest[kept]
        if not len(rows):
            break
    return [Continuation(r[:length], r[length:], m) for r, m in zip(rows.tolist(), smallest.tolist(), strict=True)]


def first_safe(model: Any, fast: Any, prompts: Iterator[list[int]], stop: list[int]) -> Continuation:
    """The first continuation found by `fast` that also keeps its margin when `model` computes it alone."""
    while batch := list(itertools.islice(prompts, BATCH)):
        for found in greedy(fast, batch, stop):
            if alone := greedy(model, [found.prompt], stop):
                return alone[0]
    raise SystemExit("no candidate keeps its distance on every step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the exported Hugging Face folder")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.folder)
    fast = load(arguments.folder)[0].cuda() if torch.cuda.is_available() else model
    cases = []
    for length, chat in ((70, False), (80, False), (90, False), (100, False), (90, True)):
        prompts = beginnings(tokenizer, length, chat)
        found = first_safe(model, fast, prompts, model.generation_config.eos_token_id)
        case = {
            "prompt": tokenizer.decode(found.prompt[1:]),  # BOS comes back by encoding
            "prompt_ids": found.prompt,
            "text": tokenizer.decode(found.tokens),
            "ids": found.tokens,
            "margin": round(found.margin, 4),
        }
        print(json.dumps(case), flush=True)
        cases.append(case)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"tokens": TOKENS, "margin": MARGIN, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
