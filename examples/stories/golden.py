"""Write the golden test data: greedy continuations by transformers, in float32, from the packed safetensors.

    python golden.py --folder build/hf --out ../../core/src/bitnet_core/testing/stories.json

Beginnings of held-out stories, in a chat or not, are continued greedily. A stretch of 64 tokens, each chosen with a
margin of at least 0.5 between the first and the second logit, does not depend on the order of summation; the text
before it becomes its prompt. The stretches with the largest margins are kept, at most one of each plot.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from documents import HELD_OUT, PROMPT
from generate import story
from shipped import load
from tokenizer import EOT

TOKENS = 64
MARGIN = 0.5  # on other devices logits differ by a tenth at most: see bitnet_core.testing.model
BEGINNING = 64  # tokens of a story that are given, so that its plot has begun
LONGEST = 160  # tokens that are continued
CANDIDATES = 192
PLAIN, CHAT = 4, 1  # cases


class Continuation(NamedTuple):
    prompt: list[int]
    tokens: list[int]
    margin: float  # the smallest difference of first and second logit
    plot: str


def beginnings(tokenizer: Any, chat: bool) -> list[tuple[list[int], str]]:
    """Return the first tokens of held-out stories, in a chat after the request, and their plots; those of the commonest
    length."""
    by_length = defaultdict(list)
    first = HELD_OUT + chat * CANDIDATES  # chats use other stories
    for seed in range(first, first + CANDIDATES):
        told = story(seed)
        asked = f"User: Tell me a story about {told.hero} the {told.kind}.{EOT}{PROMPT}" if chat else ""
        given = BEGINNING + (len(tokenizer.encode(asked)) if chat else 0)
        by_length[given].append((tokenizer.encode(asked + told.text)[:given], told.plot))
    return max(by_length.values(), key=len)


@torch.inference_mode()
def greedy(model: Any, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
    """Continue equally long prompts greedily; return tokens and logit margins, [prompts][LONGEST]."""
    given, cache = torch.tensor(prompts, device=model.device), None
    tokens, margins = [], []
    for _ in range(LONGEST):
        out = model(given, past_key_values=cache, use_cache=True, logits_to_keep=1)
        best, ids = out.logits[:, -1].topk(2)
        given, cache = ids[:, :1], out.past_key_values
        tokens.append(ids[:, 0])
        margins.append(best[:, 0] - best[:, 1])
    return torch.stack(tokens, 1).tolist(), torch.stack(margins, 1).tolist()


def safest(prompt: list[int], tokens: list[int], margins: list[float], stop: list[int], plot: str) -> Continuation:
    """Return the stretch of TOKENS tokens with the largest margin before the story ends; margin 0 if there is none."""
    end = next((i for i, token in enumerate(tokens) if token in stop), len(tokens))
    starts = range(max(0, end - TOKENS + 1))
    margin, start = max(((min(margins[i : i + TOKENS]), i) for i in starts), default=(0.0, 0))
    return Continuation([*prompt, *tokens[:start]], tokens[start : start + TOKENS], margin, plot)


@torch.inference_mode()
def margin_alone(model: Any, case: Continuation) -> float:
    """Return the smallest margin when the whole text is computed at once; 0 if another token would be chosen."""
    logits = model(torch.tensor([[*case.prompt, *case.tokens]], device=model.device)).logits[0]
    best, ids = logits[len(case.prompt) - 1 : -1].topk(2)
    return float((best[:, 0] - best[:, 1]).min()) if ids[:, 0].tolist() == case.tokens else 0.0


def cases(model: Any, tokenizer: Any, chat: bool, count: int) -> list[Continuation]:
    """Return the `count` safest continuations that keep their margin when they are computed at once, too.

    Raises:
        SystemExit: if there are not enough.
    """
    stop = model.generation_config.eos_token_id
    prompts, plots = zip(*beginnings(tokenizer, chat), strict=True)
    told = zip(prompts, *greedy(model, list(prompts)), plots, strict=True)
    found = [safest(prompt, tokens, margins, stop, plot) for prompt, tokens, margins, plot in told]
    kept: list[Continuation] = []
    for candidate in sorted(found, key=lambda one: -one.margin):
        if candidate.plot in {other.plot for other in kept}:
            continue
        margin = min(candidate.margin, margin_alone(model, candidate)) if candidate.margin else 0.0
        if margin >= MARGIN and tokenizer.encode(tokenizer.decode(candidate.prompt[1:])) == candidate.prompt:
            kept.append(candidate._replace(margin=margin))
        if len(kept) == count:
            return kept
    raise SystemExit(f"only {len(kept)} of {count} continuations keep their margin on every step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the exported Hugging Face folder")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.folder)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    found = [*cases(model, tokenizer, False, PLAIN), *cases(model, tokenizer, True, CHAT)]
    content = [
        {
            "prompt": tokenizer.decode(case.prompt[1:]),  # encoding adds BOS again
            "prompt_ids": case.prompt,
            "text": tokenizer.decode(case.tokens),
            "ids": case.tokens,
            "margin": round(case.margin, 4),
        }
        for case in found
    ]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"tokens": TOKENS, "margin": MARGIN, "cases": content}, indent=1) + "\n")


if __name__ == "__main__":
    main()
