"""A CUDA context that dies in the middle of a text, by a kernel that traps: does the text go on as it would have?

    python benchmarks/reliability/trap.py --times 100 --seconds 60

After a trap every call of the context fails (a sticky error); the engine then opens the GPU again in the same process
and goes on. Where the driver does not allow that, its error is printed. Needs an NVIDIA GPU and bitnet-cuda. Exits
with 1 if a text is another one, if the GPU does not open again, or if memory of the GPU is not given back.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bitnet_core.discovery.selection import open_device
from bitnet_core.errors import GpuError
from bitnet_core.formats.open import open_model
from bitnet_core.hal.device import Tuning, whole
from bitnet_core.kernels.base import RMS_NORM
from bitnet_core.model.source import ModelSource
from bitnet_cuda import compile
from faults import Faulty, text

TRAP = 'extern "C" __global__ void rms_norm() { asm("trap;"); }'
LOST = "does not recover in the same process"
ALLOWED_BYTES = 64 << 20
"""What the driver may keep between the first text and the last; a dead context of 500 MB would be seen."""


class Trapped(Faulty):
    """A GPU on which a kernel traps before the chosen call; what fails then fails by itself."""

    trapped = False

    def fail(self, kind: str) -> None:
        """Queue the kernel, once."""
        if self.trapped:
            return
        self.trapped = True
        with patch.object(compile, "source", lambda *_: TRAP):
            kernel = self.inner.compile(RMS_NORM, {}, Tuning(private={"GROUP": 32}))
        views = [whole(self.inner.alloc(64)) for _ in RMS_NORM.bindings]
        self.inner.launch(kernel, (1, 1, 1), views, RMS_NORM.pack({"rows": 1, "width": 1, "eps": 0.0}))


def opened() -> Any:
    return open_device("cuda:0")[0]


def free_bytes() -> int:
    """Of the GPU's memory, while nothing of ours is on it."""
    device = opened()
    try:
        return int(device.free_memory())
    finally:
        device.close()


def trial(source: ModelSource, method: str, at: int, expected: list[int]) -> str:
    """How a text with a trap in its middle ends."""
    errors: list[str] = []

    def reopen(error: GpuError) -> Any:
        errors.append(str(error))
        return opened()

    try:
        same = text(source, Trapped(opened(), method, at, "trap"), reopen) == expected
    except GpuError as error:
        return f"{LOST}: {error}"
    if not errors:
        return "no error was seen"
    return f"the same text after: {errors[0]}" if same else f"another text after: {errors[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    source = open_model(Path(str(files("bitnet_core"))) / "data" / "stories.gguf")
    clean = Faulty(opened())
    expected = text(source, clean)
    calls = [(method, at) for method in ("launch", "replay", "download") for at in range(1, clean.calls[method] + 1)]
    random.Random(1).shuffle(calls)  # wherever the time ends, all of the text was tried
    before, began, outcomes = free_bytes(), time.monotonic(), list[str]()
    for number in range(arguments.times):
        if time.monotonic() - began > arguments.seconds:
            break
        call = calls[number % len(calls)]
        outcomes.append(trial(source, *call, expected))
        if not outcomes[-1].startswith("the same text"):
            print(f"{call}: {outcomes[-1]}", flush=True)
        if outcomes[-1].startswith(LOST):
            sys.exit(1)  # nothing can be opened any more
    same = sum(outcome.startswith("the same text") for outcome in outcomes)
    seconds, kept = time.monotonic() - began, before - free_bytes()
    print(outcomes[-1])
    print(
        f"{same} of {len(outcomes)} texts are the same after a trap, in one process and {seconds:.0f} s; "
        f"{kept / 1e6:.1f} MB of the GPU are not given back"
    )
    sys.exit(same != len(outcomes) or kept > ALLOWED_BYTES)


if __name__ == "__main__":
    main()
