"""Would n-gram speculation (prompt lookup: Saxena 2023) pay? Counts what it would accept in greedy texts, and times
what a step that checks the guesses costs on the device: python benchmarks/speculation.py [-d cpu] [--synthetic 2b4t]

Prints JSON: for each number of guesses, tokens that a checking step would give, its time over that of a decoded token,
and the speed that follows, 1 being that of plain decoding.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import bitnet_core
from bitnet_core.engine.runner import Span
from bitnet_core.formats.synthetic import SyntheticSource

PROMPTS = (
    "Once upon a time",
    "The little dog",
    "Tom and Anna",
    "One day, a girl",
    "In a big forest",
    "There was a cat",
)
TOKENS, LONGEST, RUNS = 200, 3, 9


def guesses(tokens: list[int], count: int) -> list[int]:
    """What followed the last LONGEST (or fewer) tokens where they came before, the latest place first."""
    for length in range(LONGEST, 0, -1):
        ending = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == ending:
                return tokens[start + length : start + length + count]
    return []


def steps(prompt: list[int], text: list[int], count: int) -> tuple[int, int]:
    """(checking steps, plain steps) that make a text; a wrong guess costs its step, which gives one token as always."""
    checking = plain = at = 0
    while at < len(text):
        guessed = guesses([*prompt, *text[:at]], count)
        right = 0
        while right < len(guessed) and at + right < len(text) and guessed[right] == text[at + right]:
            right += 1
        checking, plain = checking + bool(guessed), plain + (not guessed)
        at += right + 1
    return checking, plain


def seconds(model: bitnet_core.Model, rows: int) -> float:
    """Of a step of so many rows of one text, with the likeliest token of each; 0: of a token of plain decoding."""
    engine, prompt = model.engine, [5 + n % 200 for n in range(64)]
    taken = []
    for run in range(RUNS):
        text = engine.add([run, *prompt], max_tokens=100)
        while text.generated_tokens < 20:
            engine.step()
        runner = engine._ready()
        began = time.perf_counter()
        if rows:
            span = Span(text.lane, text.computed, tuple(text.tokens[-1:] * rows))
            runner.prompt_step([span], range(rows), [1] * rows, engine.scheduler.chunk)
            taken.append(time.perf_counter() - began)
        else:
            made = runner.decode_greedy([Span(text.lane, text.computed, (text.tokens[-1],))], 16)
            taken.append((time.perf_counter() - began) / made.shape[1])
        engine.finish(text)
    return statistics.median(taken[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-d", "--device", default="cpu")
    parser.add_argument("--synthetic", help="a shape whose steps are timed; the texts are always of the small model")
    arguments = parser.parse_args()
    texts = []
    with bitnet_core.load(None, arguments.device) as stories:
        for prompt in PROMPTS:
            ids = stories.tokenizer.encode(prompt, add_bos=stories.tokenizer.add_bos)
            first = list(stories.generate(ids, max_tokens=TOKENS).tokens)
            again = ids + first + ids
            texts.append(("story", ids, first))
            texts.append(("the story once more", again, list(stories.generate(again, max_tokens=TOKENS).tokens)))
    source = SyntheticSource(arguments.synthetic) if arguments.synthetic else None
    with bitnet_core.load(source, arguments.device, context=256) as model:
        plain = seconds(model, 0)
        result = {"model": model.name, "device": model.device.info.name, "plain_ms": round(1e3 * plain, 3)}
        for count in (2, 4, 8):
            cost = seconds(model, count + 1) / plain
            row: dict[str, float] = {"cost": round(cost, 2)}
            for kind in ("story", "the story once more"):
                made = [(steps(ids, text, count), len(text)) for name, ids, text in texts if name == kind]
                checking, alone, tokens = (sum(n) for n in zip(*((c, p, n) for (c, p), n in made), strict=True))
                row[f"{kind}: tokens a step"] = round(tokens / (checking + alone), 2)
                row[f"{kind}: speed"] = round(tokens / (checking * cost + alone), 2)
            result[f"{count} guesses"] = row
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
