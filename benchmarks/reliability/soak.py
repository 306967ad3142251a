"""Test that memory and descriptors do not grow over many tokens in one process, and many opened and closed models.

    python benchmarks/reliability/soak.py --device cpu --tokens 1000000 --opens 200

The figures of one run are in docs/reliability.md. Exits with 1 on growth.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
import time

import psutil
from bitnet_core import load
from bitnet_core.api import Model

TEXTS = 16
ALLOWED_BYTES = 8 << 20
"""Allowed growth between the first tenth of a run, after everything has been used once, and its end."""

PROCESS = psutil.Process()


def resident() -> int:
    """Return the bytes in use, after the C library has released its freed memory, which is not a leak."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return int(PROCESS.memory_info().rss)


def generate(model: Model, tokens: int) -> tuple[int, int, int, int]:
    """Return (tokens, bytes at a tenth, bytes at the end, most descriptors above their first number)."""
    engine, done, early, descriptors, most = model.engine, 0, 0, PROCESS.num_fds(), 0
    began = time.perf_counter()
    round_number = 0
    while done < tokens:
        round_number += 1
        prompts = [f"Once upon a time number {round_number} {text}, there was" for text in range(TEXTS)]
        sequences = [
            engine.add_request(model.tokenizer.encode(p, add_bos=model.tokenizer.add_bos), max_tokens=400)
            for p in prompts
        ]
        while engine.step():
            pass
        done += sum(request.generated_tokens for request in sequences)
        most = max(most, PROCESS.num_fds() - descriptors)
        if not early and done >= tokens // 10:
            early = resident()
        if round_number % 20 == 0:
            print(
                f"{done} tokens, {done / (time.perf_counter() - began):.0f} a second, {resident() >> 20} MiB",
                flush=True,
            )
    return done, early, resident(), most


def open_and_close(device: str, times: int) -> tuple[int, int, int]:
    """Return (bytes after a tenth, bytes at the end, descriptors more than after the first)."""
    early = first = 0
    for number in range(times):
        with load(None, device) as model:
            model.generate("Once upon a time", max_tokens=4)
            model.chat([{"role": "user", "content": "Hello"}], max_tokens=2)
        del model
        if number == max(times // 10, 1):
            early, first = resident(), PROCESS.num_fds()
    return early, resident(), PROCESS.num_fds() - first


def told(early: int, late: int, descriptors: int) -> str:
    return f"{early / 1e6:.1f} MB at a tenth, {late / 1e6:.1f} MB at the end, {descriptors} more descriptors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--opens", type=int, default=200)
    arguments = parser.parse_args()
    with load(None, arguments.device) as model:
        began = time.perf_counter()
        done, early, late, descriptors = generate(model, arguments.tokens)
        seconds = time.perf_counter() - began
    print(f"{done} tokens in {seconds:.0f} s on {arguments.device}: {told(early, late, descriptors)}")
    grew = late - early > ALLOWED_BYTES or descriptors > 0
    early, late, descriptors = open_and_close(arguments.device, arguments.opens)
    print(f"{arguments.opens} times opened and closed: {told(early, late, descriptors)}")
    sys.exit(grew or late - early > ALLOWED_BYTES or descriptors > 0)


if __name__ == "__main__":
    main()
