"""Test that `auto` continues a text after its CUDA context has died by a kernel that traps.

    python benchmarks/reliability/trap.py --times 100 --workers 8

After a trap the driver refuses every call of the process, new contexts too (CUDA_ERROR_LAUNCH_FAILED: "must
be terminated and relaunched"), so each text has its own process. Under `auto` it must continue on another device with
the same text; with cuda:0 named, it must end with DeviceLostError, which states the remedy. Needs an NVIDIA GPU and
bitnet-cuda. Exits with 1 on any other result, or if memory of the GPU is not released.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import bitnet_core
from bitnet_cuda import compile
from bitnet_cuda.device import CudaDevice
from bitnet_hal.device import Tuning, whole
from bitnet_hal.discovery.selection import open_device
from bitnet_hal.errors import DeviceLostError
from bitnet_hal.kernels.base import RMS_NORM

TRAP = 'extern "C" __global__ void rms_norm() { asm("trap;"); }'
METHODS = ("launch", "replay", "download")
PROMPT, TOKENS = "Once upon a time", 40
PATIENCE = 120.0  # seconds for one text
ALLOWED_BYTES = 64 << 20
"""Allowed memory kept by the driver; a dead context of 500 MB would exceed it."""


def trap(device: Any) -> None:
    """Queue the trapping kernel."""
    with patch.object(compile, "source", lambda *_: TRAP):
        kernel = device.compile(RMS_NORM, {}, Tuning(private={"GROUP": 32}))
    views = [whole(device.alloc(64)) for _ in RMS_NORM.bindings]
    device.launch(kernel, (1, 1, 1), views, RMS_NORM.pack({"rows": 1, "width": 1, "eps": 0.0}))


def counted(calls: Counter[str], chosen: tuple[str, int]) -> None:
    """Count the calls of CudaDevice's METHODS, and trap before the chosen one."""

    def around(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any) -> Any:
            calls[name] += 1
            if (name, calls[name]) == chosen:
                trap(self)
            return real(self, *arguments)

        return call

    for name in METHODS:
        setattr(CudaDevice, name, around(name, getattr(CudaDevice, name)))


def one_text(request: str, method: str, at: int) -> dict[str, Any]:
    """Generate a text in this process, with a trap before the given call, or without one for at = 0."""
    calls: Counter[str] = Counter()
    found: dict[str, Any] = {"calls": calls, "error": ""}
    with bitnet_core.load("stories", request) as model:
        found["first"] = model.device.info.request
        counted(calls, (method, at))
        try:
            found["text"] = model.generate(PROMPT, max_tokens=TOKENS).text
        except DeviceLostError as error:
            found["error"] = str(error)
        found["last"] = model.device.info.request
    return found


def apart(request: str, method: str = "", at: int = 0) -> dict[str, Any]:
    """Run `one_text` in a child process."""
    command = [sys.executable, __file__, "--text", request, method or "-", str(at)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        return {"error": f"exit {done.returncode}: {done.stderr[-400:]}", "calls": {}, "first": "", "last": ""}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def outcome(request: str, call: tuple[str, int], expected: str) -> str:
    """Describe the end of a text with a trap."""
    found = apart(request, *call)
    if found["calls"].get(call[0], 0) < call[1]:
        return found["error"] or outcome(
            request, (call[0], call[1] // 2), expected
        )  # the number of calls depends on the clock
    if found["error"]:
        return f"{'ended with' if request != 'auto' else 'WRONG, ended with'} DeviceLostError: {found['error']}"
    if found["last"] == found["first"]:
        return "WRONG, no error was seen"
    return f"{'the same' if found['text'] == expected else 'WRONG, another'} text, ended on {found['last']}"


def free_bytes() -> int:
    """Return the GPU's free memory while no process of ours uses it."""
    device: Any = open_device("cuda:0")[0]
    try:
        return int(device.free_memory())
    finally:
        device.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--text", nargs=3, help=argparse.SUPPRESS)  # for the child processes
    arguments = parser.parse_args()
    if arguments.text:
        request, method, at = arguments.text
        print(json.dumps(one_text(request, method, int(at))))
        return
    clean, before, began = apart("auto"), free_bytes(), time.monotonic()
    if not clean["first"].startswith("cuda:"):
        sys.exit(f"auto selects {clean['first'] or clean['error']}, not an NVIDIA GPU by bitnet-cuda")
    calls = [(method, at) for method in METHODS for at in range(1, clean["calls"].get(method, 0) + 1)]
    chosen = random.Random(1).choices(calls, k=arguments.times)
    with ThreadPoolExecutor(arguments.workers) as workers:
        outcomes = Counter(workers.map(lambda call: outcome("auto", call, clean["text"]), chosen))
        named = Counter(workers.map(lambda call: outcome("cuda:0", call, clean["text"]), chosen[:4]))
    for request, found in (("auto", outcomes), ("cuda:0", named)):
        for what, times in found.most_common():
            print(f"{request}: {times} x {what}")
    kept, seconds = before - free_bytes(), time.monotonic() - began
    print(f"{arguments.times + 4} texts in {seconds:.0f} s; {kept / 1e6:.1f} MB of the GPU were not released")
    same = sum(times for what, times in outcomes.items() if what.startswith("the same text"))
    print(f"{same} of {arguments.times} texts continued and are equal")
    ended = sum(times for what, times in named.items() if what.startswith("ended with DeviceLostError"))
    sys.exit(same < arguments.times or ended < sum(named.values()) or kept > ALLOWED_BYTES)


if __name__ == "__main__":
    main()
