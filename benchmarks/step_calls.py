"""Count the Python calls and source files of a steady greedy step.

    python benchmarks/step_calls.py [--device cpu] [--list]

Runs the shipped model until the number of steps per read is constant, then traces each `Engine.step` with
sys.setprofile. Only calls into this project's packages count. The step with the fewest calls and the one with the most
are printed: the latter takes a block of the cache, fills one, and uploads a block table.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import bitnet_core

PACKAGES = ("bitnet_core", "bitnet_hal", "bitnet_cpu", "bitnet_opencl", "bitnet_cuda")
WARM_UP = 40
"""Tokens before the first traced step; the counts of the policy double up to their limit within these."""
STEPS = 100
"""Largest number of traced steps."""


def location(path: str) -> str | None:
    """Return a source path from its package on; None for code outside PACKAGES."""
    parts = Path(path).parts
    return next(("/".join(parts[parts.index(name) :]) for name in PACKAGES if name in parts), None)


def trace(device: str) -> list[Counter[tuple[str, str]]]:
    """Return the calls of steady steps by (file, function): those that read the largest number of tokens."""
    calls: Counter[tuple[str, str]] = Counter()
    steps: dict[int, list[Counter[tuple[str, str]]]] = {}

    def record(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        file = location(code.co_filename)
        if event == "call" and file is not None:
            calls[file, code.co_qualname] += 1

    with bitnet_core.load(device=device) as model:
        engine = model.engine
        request = engine.add_request(range(1, 9), max_tokens=engine.max_model_len - 9)
        while request.generated_tokens < WARM_UP:
            engine.step()
        for _ in range(STEPS):
            if request.finish_reason is not None:
                break
            calls.clear()
            sys.setprofile(record)
            try:
                ((_, tokens),) = engine.step()
            finally:
                sys.setprofile(None)
            steps.setdefault(len(tokens), []).append(calls.copy())
    return steps[max(steps)]


def main() -> None:
    """Print the counts, and with --list every function."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--list", action="store_true", help="print the calls of every function")
    options = parser.parse_args()
    steps = sorted(trace(options.device), key=Counter.total)
    for name, calls in (("fewest", steps[0]), ("median", steps[len(steps) // 2]), ("most", steps[-1])):
        files = {file for file, _ in calls}
        print(f"{name}: {calls.total()} calls of {len(calls)} functions in {len(files)} files")
        if options.list:
            for (file, function), count in sorted(calls.items()):
                print(f"{count:5} {file} {function}")


if __name__ == "__main__":
    main()
