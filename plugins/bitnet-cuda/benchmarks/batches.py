"""Measure a decode step of several requests (2B-4T's shape, random weights) in the middle of 128 + 128 tokens.

Prints the time of the step, its time without programmatic launch, and for each kernel the time saved without it.

    python plugins/bitnet-cuda/benchmarks/batches.py [--texts 8,32,64] [--shape 2b4t] [--deterministic]

`bitnet bench --profile` measures such a step only after requests have ended, when attention reads less, and each launch
separately. Only this script shows the effect of launches on each other.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from bitnet_core.api import Model, load
from bitnet_core.formats.synthetic import SyntheticSource
from decode import NEVER, replay_time, watched_steps

PROMPT, TOKENS, MIDDLE = 128, 128, 64


def label(launch: Any) -> str:
    """Return the kernel's name and the matrix or row that it processes."""
    params = launch.kernel.spec.unpack(launch.params)
    return " ".join([launch.kernel.spec.name, *(f"{params[size]:.0f}" for size in ("outs", "width") if size in params)])


def step_in_the_middle(model: Model, texts: int) -> list[Any]:
    """Return the launches of a greedy step of `texts` requests that have half of their tokens."""
    device: Any = model.device
    engine, seen = model.engine, []
    rng = np.random.default_rng(texts)
    prompts = rng.integers(0, model.config.tokens, (texts, PROMPT)).tolist()
    running = [engine.add_request(prompt, max_tokens=TOKENS) for prompt in prompts]
    while min(text.generated_tokens for text in running) < MIDDLE:
        engine.step()
    with watched_steps(device, seen.append):
        while not seen:  # steps that were queued ahead are not replayed again
            engine.step()
    return [launch for launch in seen[-1].launches if launch.kernel.spec.name != NEVER]


def show(device: Any, texts: int, launches: list[Any]) -> None:
    """Measure a step and print its times."""
    labels = [label(launch) for launch in launches]
    whole = replay_time(device, launches)
    overlap, device._overlap = device._overlap, False
    apart = replay_time(device, launches)
    device._overlap = overlap
    print(f"{texts} texts: a step takes {whole:.0f} us, {apart:.0f} without programmatic launch; without", flush=True)
    for one in dict.fromkeys(labels):
        rest = [launch for launch, name in zip(launches, labels, strict=True) if name != one]
        saved = whole - replay_time(device, rest)
        print(
            f"  {one:28} x{labels.count(one):3} {saved:7.0f} us less, {saved / labels.count(one):6.2f} each", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", default="8,32,64")
    parser.add_argument("--shape", default="2b4t")
    parser.add_argument("--deterministic", action="store_true")
    arguments = parser.parse_args()
    for texts in map(int, arguments.texts.split(",")):
        source = SyntheticSource(arguments.shape)
        with load(source, "cuda:0", max_sequences=texts, deterministic=arguments.deterministic) as model:
            show(model.device, texts, step_in_the_middle(model, texts))


if __name__ == "__main__":
    main()
