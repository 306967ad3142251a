"""Makes the golden test data: greedy continuations by transformers, in float32, from the packed safetensors.

    python golden.py --folder build/hf --out ../../core/tests/golden/stories.json

Prompts are taken from long lists of candidates: the first of each list whose 64 tokens are all chosen with a distance
of at least 0.1 between the first and the second logit, so that another order of summation cannot change the text.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import words
from chat import render
from documents import HELD_OUT, PROMPT
from generate import story
from shipped import load

TOKENS = 64
MARGIN = 0.1
BATCH = 64
CANDIDATES = 3000


class Continuation(NamedTuple):
    prompt: list[int]
    tokens: list[int]
    margin: float  # the smallest distance of first and second logit


def openings() -> Iterator[str]:
    for name, trait, kind in itertools.product(words.HE_NAMES, words.TRAITS, words.ANIMALS):
        yield f"Once upon a time there was a {trait} {kind} named {name}."


def requests() -> Iterator[str]:
    for name, kind in itertools.product(words.SHE_NAMES + words.HE_NAMES, words.ANIMALS):
        yield render([{"role": "user", "content": f"Tell me a story about {name} the {kind}."}]) + PROMPT


def beginnings(tokenizer: Any, length: int) -> Iterator[str]:
    """The first `length` tokens of held-out stories, where the text splits into the same tokens again."""
    for seed in itertools.count(HELD_OUT):
        ids = tokenizer.encode(story(seed).text)[:length]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        if tokenizer.encode(text) == ids:
            yield text


@torch.inference_mode()
def greedy(model: Any, prompts: list[list[int]], stop: list[int]) -> list[Continuation]:
    """Continuations of equally long prompts, without those that fall below the margin or end."""
    length = len(prompts[0])
    rows, smallest = torch.tensor(prompts), torch.full((len(prompts),), float("inf"))
    for _ in range(TOKENS):
        best, tokens = model(rows, use_cache=False, logits_to_keep=1).logits[:, -1].topk(2)
        smallest = smallest.minimum(best[:, 0] - best[:, 1])
        kept = (smallest >= MARGIN) & ~torch.isin(tokens[:, 0], torch.tensor(stop))
        rows, smallest = torch.cat((rows, tokens[:, :1]), 1)[kept], smallest[kept]
        if not len(rows):
            break
    return [Continuation(r[:length], r[length:], m) for r, m in zip(rows.tolist(), smallest.tolist(), strict=True)]


def first_safe(model: Any, tokenizer: Any, texts: Iterator[str], stop: list[int]) -> Continuation:
    """The first continuation that also keeps its margin when it is computed alone."""
    encoded = sorted((tokenizer.encode(text) for text in itertools.islice(texts, CANDIDATES)), key=len)
    for _, group in itertools.groupby(encoded, key=len):
        prompts = iter(group)
        while batch := list(itertools.islice(prompts, BATCH)):
            for found in greedy(model, batch, stop):
                if alone := greedy(model, [found.prompt], stop):
                    return alone[0]
    raise SystemExit("no candidate keeps its distance on every step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the exported Hugging Face folder")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.folder)
    cases = []
    for texts in (openings(), requests(), *(beginnings(tokenizer, length) for length in (60, 90, 110))):
        found = first_safe(model, tokenizer, texts, model.generation_config.eos_token_id)
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
