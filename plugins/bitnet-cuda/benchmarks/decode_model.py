"""Decode with a whole model on one GPU: tokens per second, time of a step on device and host, and other tunings.

    python decode_model.py MODEL.gguf [--layout A] [--cases 1x128,1x2048,8x128]
        [--trigger late]
        [--try "rope_attention GROUP=256 SPAN=128; norm_matmul/3840 TILE_N=16"]

A case is TEXTSxPROMPT: so many texts at a time behind prompts of random tokens, 128 tokens each, decoded greedily by
the engine; the median of 5 runs after one. Each --try (it may be given several times) changes the tuning of kernels,
those of a number of outputs (and columns) if given behind slashes; "overlap AHEAD=1" changes overlap.py.
Its tokens should be those of the first line. "device": one step of one text by the GPU's clock, replayed 40 times
without a pause. "host": the host's share of a replay.
--trigger late lets the next kernel start only when a kernel has waited for the ones before, none when it has ended.
"""

from __future__ import annotations

import argparse
import statistics
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.options import EngineOptions
from bitnet_core.formats.open import open_model
from bitnet_cuda import compiler, overlap, tuning
from bitnet_cuda.device import CudaDevice

TOKENS = 129  # the first comes out of the prefill
RUNS = 5
REPLAYS = 40
LAUNCH = 'asm volatile("griddepcontrol.launch_dependents;");'
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'

AHEAD = overlap.AHEAD
tuned = tuning.choose
source_of = compiler.source_text


def changed(rules: str) -> Any:
    """tuning.choose with rules "kernel/outs/columns NAME=VALUE; ..."; "overlap NAME=VALUE" is done to overlap.py."""
    parsed = []
    overlap.AHEAD = AHEAD
    for rule in filter(None, map(str.strip, rules.split(";"))):
        kernel, *values = rule.split()
        name, *shape = kernel.split("/")
        settings = {k: int(v) for k, v in (value.split("=") for value in values)}
        if name == "overlap":
            vars(overlap).update(settings)
        else:
            parsed.append((name, dict(zip(("outs", "columns"), map(int, shape), strict=False)), settings))

    def choose(spec: Any, constants: Mapping[str, int], params: Mapping[str, Any], **kind: bool) -> dict[str, int]:
        tile = tuned(spec, constants, params, **kind)
        for name, shape, values in parsed:
            if spec.name == name and all(params[size] == value for size, value in shape.items()):
                tile = {**tile, **values}
        return tile

    return choose


def triggered(when: str) -> Any:
    """compiler.source_text with the start of the next kernel moved."""

    def source_text(path: Path, constants: Mapping[str, int]) -> str:
        text = source_of(path, constants)
        if when == "early":
            return text
        return text.replace(LAUNCH, "").replace(WAIT, WAIT + LAUNCH if when == "late" else WAIT)

    return source_text


def decode(engine: Engine, texts: int, prompt: int) -> tuple[float, int]:
    """(tokens per second of all texts, checksum of the tokens), median of RUNS."""
    speeds = []
    for _ in range(RUNS + 1):
        rng = np.random.default_rng(7)
        vocab = engine.config.vocab
        sequences = [engine.add(rng.integers(0, vocab, prompt).tolist(), max_tokens=TOKENS) for _ in range(texts)]
        while any(sequence.generated_tokens == 0 for sequence in sequences):
            engine.step()
        before = sum(sequence.generated_tokens for sequence in sequences)
        start = time.perf_counter()
        while any(sequence.finish_reason is None for sequence in sequences):
            engine.step()
        took = time.perf_counter() - start
        speeds.append((sum(sequence.generated_tokens for sequence in sequences) - before) / took)
    return statistics.median(speeds[1:]), zlib.crc32(str([sequence.tokens for sequence in sequences]).encode())


def step_times(engine: Engine) -> tuple[float, float]:
    """Seconds of one step of one text on the device, and of its replay on the host."""
    device, recording = engine.device, engine._ready()._recorded("greedy", 1).recording
    device.synchronize()
    start = time.perf_counter()
    for _ in range(REPLAYS):
        device.replay(recording)
    host = time.perf_counter() - start
    device.synchronize()
    return (time.perf_counter() - start) / REPLAYS, host / REPLAYS


def main() -> None:
    """Print a line per variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--layout")
    parser.add_argument("--cases", default="1x128,1x2048,8x128")
    parser.add_argument("--try", dest="tries", action="append", default=[])
    parser.add_argument("--trigger", choices=("early", "late", "none"), default="early")
    arguments = parser.parse_args()
    cases = [tuple(map(int, case.split("x"))) for case in arguments.cases.split(",")]
    compiler.source_text = triggered(arguments.trigger)
    source = open_model(arguments.model, layout=arguments.layout)
    texts = max(case[0] for case in cases)
    engine = Engine(source, CudaDevice(0), EngineOptions(max_sequences=texts))
    for rules in ["", *arguments.tries]:
        tuning.choose = changed(rules)
        engine._drop_runner()  # recordings and compiled kernels go; weights stay
        engine._launcher._kernels.clear()
        figures = []
        for case in cases:
            speed, tokens = decode(engine, *case)
            figures.append(f"{case[0]}x{case[1]} {speed:7.0f} tokens/s [{tokens:08x}]")
        device, host = step_times(engine)
        print(
            f"{'  '.join(figures)}  device {device * 1e6:.0f} us, host {host * 1e6:.1f} us  {rules or 'as tuned'}",
            flush=True,
        )
    engine.close()
    source.close()


if __name__ == "__main__":
    main()
