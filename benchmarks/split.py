"""Measure a model split over two devices against one of them.

    python benchmarks/split.py --synthetic bonsai-8b -d cuda:0 cuda:1 [--texts 1 16] [--repeat 3]

Each row is the median of --repeat decodes of TOKENS tokens after prompts of PROMPT tokens, in tokens a second of all
texts together. The ratios come last.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import bitnet_core
import numpy as np
from bitnet_core.api.loading import open_source
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.model.source import ModelSource

PROMPT, TOKENS, CONTEXT = 128, 128, 1024
_WARM_UPS = 2
"""Decodes that do not count: they compile kernels and record steps."""


def decode_speed(model: bitnet_core.Model, texts: int, draw: np.random.Generator) -> float:
    """Decode texts together, and return the tokens a second of the steps in which all of them were decoding."""
    engine = model.engine
    prompts = draw.integers(0, engine.config.tokens, (texts, PROMPT)).tolist()
    requests = [engine.add_request(prompt, max_tokens=TOKENS) for prompt in prompts]
    while not all(request.generated_tokens for request in requests):
        engine.step()
    tokens, seconds = 0, 0.0
    while all(request.finish_reason is None for request in requests):
        began = time.perf_counter()
        outputs = engine.step()
        seconds += time.perf_counter() - began
        tokens += sum(len(output.tokens) for output in outputs)
    while engine.step():
        pass
    return tokens / seconds


def measure(name: str, texts: list[int], repeat: int, **load: Any) -> dict[int, float]:
    """Load a model, print its rows, and return the speed for each number of texts."""
    draw = np.random.default_rng(0)
    speeds = {}
    context = min(CONTEXT, load["model"].config.context)
    with bitnet_core.load(max_sequences=max(texts), context=context, **load) as model:
        layers = ", ".join(f"{device} {count}" for device, count in model.engine.layers_by_device.items())
        for count in texts:
            runs = [decode_speed(model, count, draw) for _ in range(_WARM_UPS + repeat)][_WARM_UPS:]
            speeds[count] = statistics.median(runs)
            spread = f"{min(runs):.1f} to {max(runs):.1f}"
            print(f"{name:<10} {count:>3} texts {speeds[count]:>9.1f} tokens/s ({spread}); layers {layers}", flush=True)
    return speeds


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="model file; default: the shape of --synthetic")
    parser.add_argument("--synthetic", default="2b4t", help="shape of random weights")
    parser.add_argument("-d", "--devices", nargs=2, required=True, metavar="DEVICE")
    parser.add_argument("--texts", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--split", help="numbers of layers, as in 19,17; default: --split auto's")
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    first, second = asked.devices

    def source() -> ModelSource:
        return SyntheticSource(asked.synthetic) if asked.model is None else open_source(asked.model, None, False, True)

    one = measure("one", asked.texts, asked.repeat, model=source(), device=first)
    if asked.split:
        before, after = asked.split.split(",")
        placed = {"split": f"{first}:{before},{second}:{after}"}
    else:
        placed = {"split": "auto", "device": second}
    both = measure("split", asked.texts, asked.repeat, model=source(), **placed)
    ratios = [f"split/one, {count} texts: {both[count] / one[count]:.2f}" for count in asked.texts]
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
