"""Measure the gain of prompt lookup (bitnet_core.engine.speculation): python benchmarks/prompt_lookup.py [-d cpu]
[--synthetic 2b4t]

Greedy texts are generated alternately with and without it; the output has their time, whether they are equal, and the
counts of draft and accepted tokens. Random weights do not repeat themselves as language does, so with --synthetic the
texts of the shipped model determine the tokens per step, and the shape the time of a step. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import bitnet_core
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.speculation.prompt_lookup import NgramIndex
from bitnet_core.engine.speculative import DRAFT_TOKENS
from bitnet_core.formats.synthetic import SyntheticSource

PROMPTS = (
    "Once upon a time",
    "The little dog",
    "Tom and Anna",
    "One day, a girl",
    "In a big forest",
    "There was a cat",
)
KINDS = ("story", "the story once more")
TOKENS, RUNS, TURNS = 200, 9, 3


def texts(model: bitnet_core.Model) -> list[tuple[str, list[int], list[int]]]:
    """Return (kind, prompt, greedy tokens after it): stories, and stories whose prompt holds them already."""
    found = []
    for prompt in PROMPTS:
        ids = model.tokenizer.encode(prompt, add_bos=model.tokenizer.add_bos)
        first = list(model.generate(ids, max_tokens=TOKENS).tokens)
        again = ids + first + ids
        found.append((KINDS[0], ids, first))
        found.append((KINDS[1], again, list(model.generate(again, max_tokens=TOKENS).tokens)))
    return found


def steps(prompt: list[int], text: list[int]) -> tuple[int, int]:
    """Return (verification steps, plain steps) for a text; a step whose draft is rejected still yields one token."""
    checking = plain = at = 0
    lookup = NgramIndex()
    while at < len(text):
        drafted = lookup.following([*prompt, *text[:at]], DRAFT_TOKENS)
        right = 0
        while right < len(drafted) and at + right < len(text) and drafted[right] == text[at + right]:
            right += 1
        checking, plain = checking + bool(drafted), plain + (not drafted)
        at += right + 1
    return checking, plain


def seconds(model: bitnet_core.Model, rows: int) -> float:
    """Time a step with `rows` rows of one request and the likeliest token of each; 0: a token of plain decoding."""
    engine, prompt = model.engine, [5 + n % 200 for n in range(64)]
    taken = []
    for run in range(RUNS):
        text = engine.add_request([run, *prompt], max_tokens=100)
        while text.generated_tokens < 20:
            engine.step()
        runner = engine._ready()
        began = time.perf_counter()
        if rows:
            span = ScheduledTokens(text.req_index, text.computed, tuple(text.tokens[-1:] * rows))
            list(
                runner.prompt_step(
                    [span], range(rows), [text.sampler.wanted(text.tokens)] * rows, engine.scheduler.chunk
                )
            )
            taken.append(time.perf_counter() - began)
        else:
            made = runner.multi_step.decode([ScheduledTokens(text.req_index, text.computed, (text.tokens[-1],))], 16)
            taken.append((time.perf_counter() - began) / made.shape[1])
        engine.finish_request(text)
    return statistics.median(taken[2:])


def expected(shape: str, device: str, made: list[tuple[str, list[int], list[int]]]) -> dict[str, Any]:
    """Estimate the gain for a model of this shape that would write these texts. Speed 1 is that of plain decoding."""
    with bitnet_core.load(SyntheticSource(shape), device, context=256, prompt_lookup="off") as model:
        plain = seconds(model, 0)
        cost = seconds(model, DRAFT_TOKENS + 1) / plain
        found: dict[str, Any] = {"model": model.name, "plain_ms": round(1e3 * plain, 3), "cost": round(cost, 2)}
    for kind in KINDS:
        counted = [(steps(ids, text), len(text)) for name, ids, text in made if name == kind]
        checking, alone, tokens = (sum(n) for n in zip(*((c, p, n) for (c, p), n in counted), strict=True))
        found[f"{kind}: tokens a step"] = round(tokens / (checking + alone), 2)
        found[f"{kind}: speed"] = round(tokens / (checking * cost + alone), 2)
    return found


def measured(device: str, made: list[tuple[str, list[int], list[int]]]) -> dict[str, Any]:
    """Measure the shipped model with and without prompt lookup."""
    found: dict[str, Any] = {}
    with (
        bitnet_core.load(None, device, prompt_lookup="off") as plain,
        bitnet_core.load(None, device, prompt_lookup="on") as looking,
    ):
        for kind in KINDS:
            ratios = []
            for _ in range(TURNS):
                took = {}
                for name, model in (("plain", plain), ("looking", looking)):
                    began = time.perf_counter()
                    for _, ids, text in (one for one in made if one[0] == kind):
                        if list(model.generate(ids, max_tokens=TOKENS).tokens) != text:
                            raise SystemExit(f"the text differs with prompt lookup, after {ids}")
                    took[name] = time.perf_counter() - began
                ratios.append(took["plain"] / took["looking"])
            found[f"{kind}: speed"] = round(statistics.median(ratios), 2)
        figures = looking.stats()
        found |= {name: figures[name] for name in ("draft_tokens", "accepted_tokens")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--device", default="cpu")
    parser.add_argument("--synthetic", help="a shape whose steps are timed")
    arguments = parser.parse_args()
    with bitnet_core.load(None, arguments.device, prompt_lookup="off") as stories:
        made, name = texts(stories), stories.device.info.name
    result = {"device": name, "the shipped model, texts the same": measured(arguments.device, made)}
    if arguments.synthetic:
        result["estimated for the shape"] = expected(arguments.synthetic, arguments.device, made)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
