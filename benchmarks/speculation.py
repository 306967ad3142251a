"""Measure speculation on a device with random weights of real shapes: python benchmarks/speculation.py -d cuda

Three measurements of each shape, greedy, with the option deterministic where the device needs it:

- the duration of a step that verifies 1, 2, 4 and 8 rows of one text;
- tokens per second with draft tokens that are right with probability 0 (a text without repetition, of which every
  search still finds a draft), 0.5, 0.7 and 0.9, for 1, 4 and 8 texts;
- prompt lookup on a text that repeats its prompt, the edit of a source file, and on prose that does not. Random weights
  write neither, so a constraint forces the texts: every step computes the model, and its choice is the next token of
  the text. Tokens are words and marks. A forced text is slower than a greedy one, with and without drafts, because
  the host needs each token before the next step: what lookup costs is the ratio to the forced text without it.

Ratios are to the same engine without speculation, and to one with default options ("default"), which fuses kernels on
devices that are not batch-invariant by themselves. The table comes last; --json FILE keeps all figures.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
import zlib
from pathlib import Path
from typing import Any

import bitnet_core
import numpy as np
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.sampling.constraint import Mask
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.measure.speculation import measure_speculation
from bitnet_hal.errors import BitnetError
from bitnet_hal.rounding import ceil_div

ROOT = Path(__file__).parents[1]
CODE = ROOT / "core/src/bitnet_core/engine/schedule/admission.py"
PROSE = ROOT / "docs/decisions.md"
EDITS = (("request", "entry"), ("blocks", "pages"), ("Return", "Give"), ("tokens_left", "room"))
PROBABILITIES = (0.0, 0.5, 0.7, 0.9)
SEQUENCES = (1, 4, 8)


class Forced:
    """A constraint that allows the next token of a text only."""

    def __init__(self, text: list[int], vocab: int, at: int = 0) -> None:
        self._text, self._vocab, self._at = text, vocab, at

    def mask(self) -> Mask:
        words = np.zeros(ceil_div(self._vocab, 32), np.uint32)
        token = self._text[self._at]
        words[token // 32] = 1 << token % 32
        return words.view(np.int32)

    def accept(self, token: int) -> bool:
        self._at += 1
        return self._at < len(self._text)

    def copy(self) -> Forced:
        return Forced(self._text, self._vocab, self._at)


def tokens_of(text: str, vocab: int) -> list[int]:
    """Return an id for each word, mark and run of white space."""
    return [zlib.crc32(part.encode()) % vocab for part in re.findall(r"\w+|\s+|[^\w\s]", text)]


def texts(vocab: int, count: int) -> dict[str, tuple[list[int], list[int]]]:
    """Return prompts and answers of `count` tokens: a file and its edit, and a page in two parts."""
    code = CODE.read_text()
    edited = code
    for old, new in EDITS:
        edited = re.sub(rf"\b{old}\b", new, edited)
    prose = tokens_of(PROSE.read_text(), vocab)
    prompt = tokens_of(code, vocab)
    return {
        "edit of the prompt": (prompt[: 2 * count], tokens_of(edited, vocab)[:count]),
        "no repetition": (prose[: 2 * count], prose[4 * count : 5 * count]),
    }


def forced_speed(engine: Engine, prompt: list[int], answer: list[int], repeat: int) -> tuple[float, float]:
    """Return tokens per second after the first token, the median of `repeat` runs, and the share of accepted draft
    tokens."""
    speeds = []
    drafted = accepted = 0
    for _ in range(1 + repeat):
        constraint = Forced(answer, engine.config.vocab)
        request = engine.add_request(prompt, max_tokens=len(answer), constraint=constraint)
        while not request.generated_tokens:
            engine.step()
        before = request.generated_tokens
        began = time.perf_counter()
        while request.finish_reason is None:
            engine.step()
        speeds.append((request.generated_tokens - before) / (time.perf_counter() - began))
        if request.generated != answer:
            raise SystemExit(f"the text is not the forced one: {request.error or request.finish_reason}")
        drafted += request.draft_tokens
        accepted += request.accepted_tokens
    return statistics.median(speeds[1:]), accepted / max(1, drafted)


def greedy_speed(engine: Engine, prompt: list[int], count: int, repeat: int) -> float:
    """Return the greedy tokens per second of plain decoding."""
    speeds = []
    for _ in range(1 + repeat):
        request = engine.add_request(prompt, max_tokens=count)
        while not request.generated_tokens:
            engine.step()
        before = request.generated_tokens
        began = time.perf_counter()
        while request.finish_reason is None:
            engine.step()
        speeds.append((request.generated_tokens - before) / (time.perf_counter() - began))
    return statistics.median(speeds[1:])


def measured(shape: str, device: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one shape."""
    count, repeat = arguments.tokens, arguments.repeat
    options: dict[str, Any] = {"context": 8 * count, "max_sequences": max(SEQUENCES)}
    found: dict[str, Any] = {"shape": shape}
    vocab = SyntheticSource(shape).config.tokens
    cases = texts(vocab, count)
    prompt = cases["no repetition"][0]
    with bitnet_core.load(SyntheticSource(shape), device, speculate="off", **options) as plain:
        found["device"] = f"{plain.device.info.request} ({plain.device.info.name})"
        found["default"] = greedy_speed(plain.engine, prompt, count, repeat)
        exact = "batch-invariant" in plain.device.info.features
    options["deterministic"] = not exact
    with bitnet_core.load(SyntheticSource(shape), device, speculate="lookup", **options) as model:
        engine = model.engine
        speculative = engine.scheduler.speculative
        drafter, rows = speculative.drafter, speculative.rows
        found["simulated"] = [
            measure_speculation(
                engine, PROBABILITIES, prompt_tokens=16, max_tokens=count, repeat=repeat, sequences=sequences
            ).document()
            for sequences in SEQUENCES
        ]
        found["lookup"] = {}
        for name, (prompt, answer) in cases.items():
            speculative.use(None, 0)
            greedy = greedy_speed(engine, prompt, len(answer), repeat)
            alone, _ = forced_speed(engine, prompt, answer, repeat)
            speculative.use(drafter, rows)
            speed, acceptance = forced_speed(engine, prompt, answer, repeat)
            found["lookup"][name] = {
                "greedy": greedy,
                "forced": alone,
                "lookup": speed,
                "acceptance": acceptance,
                "off": engine.speculation.off,
            }
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """Return the lines of the table of one shape."""
    shape = found["shape"]
    if "error" in found:
        return [f"{shape:14} {found['error']}"]
    table = []
    one = found["simulated"][0]
    costs = {int(rows): seconds for rows, seconds in one["row_seconds"].items()}
    ratios = "  ".join(f"{rows}: {seconds / costs[1]:.2f}" for rows, seconds in costs.items())
    table.append(f"{shape:14} verified rows, step time / that of 1 row ({1e3 * costs[1]:.3f} ms)   {ratios}")
    for result in found["simulated"]:
        ratios = "  ".join(
            f"P {run['probability']}: {run['speed'] / result['plain_speed']:.2f}" for run in result["runs"]
        )
        many = f"{result['sequences']} text{'s' * (result['sequences'] > 1)}"
        table.append(
            f"{shape:14} {many}, tokens/s / without speculation ({result['plain_speed']:.1f} tokens/s)   {ratios}"
        )
    ratios = "  ".join(f"P {run['probability']}: {run['speed'] / found['default']:.2f}" for run in one["runs"])
    table.append(f"{shape:14} 1 text, tokens/s / default options ({found['default']:.1f} tokens/s)   {ratios}")
    for name, result in found["lookup"].items():
        table.append(
            f"{shape:14} prompt lookup, {name}: {result['lookup'] / result['forced']:.2f} x the forced text, "
            f"{result['lookup'] / result['greedy']:.2f} x greedy without ({result['greedy']:.1f} tokens/s; the forced "
            f"text without: {result['forced'] / result['greedy']:.2f} x), {result['acceptance']:.0%} right"
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--device", default="cuda")
    parser.add_argument("--shapes", default="2b4t,bonsai-8b,bonsai2-27b")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each text")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file for all figures")
    arguments = parser.parse_args()
    results = []
    for shape in arguments.shapes.split(","):
        try:
            results.append(measured(shape, arguments.device, arguments))
        except BitnetError as exc:
            results.append({"shape": shape, "error": f"not measured: {exc}"})
        print(json.dumps(results[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    print(f"\n{results[0].get('device', arguments.device)}")
    for found in results:
        print("\n".join(lines(found)))


if __name__ == "__main__":
    main()
