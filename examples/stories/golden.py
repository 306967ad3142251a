"""Makes the golden test data: greedy continuations by transformers, in float32, from the packed safetensors.

    python golden.py --folder build/hf --out ../../core/tests/golden/stories.json

Prompts are taken from a long list of candidates: the first of each sort whose 64 tokens are chosen with a distance of
at least 0.1 between the first and the second logit, so that another order of summation cannot change the text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import words
from chat import render
from documents import HELD_OUT, PROMPT
from generate import story
from shipped import load

TOKENS = 64
MARGIN = 0.1


def candidates() -> Iterator[Iterator[str]]:
    """One list of prompts for each prompt wanted."""
    heroes = [(f"{trait} {kind}", story(seed)) for seed, trait in enumerate(words.TRAITS) for kind in words.ANIMALS]
    yield (f"Once upon a time there was a {who} named {told.hero}." for who, told in heroes)
    requests = (f"Tell me a story about a {kind} named {name}." for name in words.HE_NAMES for kind in words.ANIMALS)
    yield (render([{"role": "user", "content": request}]) + PROMPT for request in requests)
    seeds = iter(range(HELD_OUT, HELD_OUT + 2000))
    for paragraphs in (1, 2, 2):
        yield ("\n\n".join(story(seed).text.split("\n\n")[:paragraphs]) for seed in seeds)


@torch.inference_mode()
def greedy(model: Any, ids: list[int], stop: set[int]) -> tuple[list[int], float] | None:
    """Continuation and its smallest margin; None if a margin is too small or the text ends early."""
    tokens, cache, chosen, smallest = torch.tensor([ids]), None, [], float("inf")
    for _ in range(TOKENS):
        result = model(tokens, past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        (first, second), (token, _) = (row.tolist() for row in result.logits[0, -1].topk(2))
        if first - second < MARGIN or token in stop:
            return None
        smallest = min(smallest, first - second)
        chosen.append(token)
        tokens = torch.tensor([[token]])
    return chosen, smallest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the exported Hugging Face folder")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.folder)
    stop = set(model.generation_config.eos_token_id)
    cases = []
    for prompts in candidates():
        for tried, prompt in enumerate(prompts, 1):
            ids = tokenizer.encode(prompt)
            found = greedy(model, ids, stop)
            if found:
                chosen, margin = found
                text = tokenizer.decode(chosen)
                case = {"prompt": prompt, "prompt_ids": ids, "ids": chosen, "text": text, "margin": round(margin, 4)}
                cases.append(case)
                print(f"candidate {tried}, margin {margin:.3f}: {prompt!r} -> {text!r}", flush=True)
                break
        else:
            raise SystemExit("no candidate keeps its distance on every step")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"tokens": TOKENS, "margin": MARGIN, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
