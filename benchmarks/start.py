"""Measure the time of commands from their start to the first byte and to the end, and the time of loading a model.

    python benchmarks/make_gguf.py 2b4t /tmp/2b4t.gguf --texts /usr/share
    python benchmarks/start.py /tmp/2b4t.gguf --layout A -d cuda:0

Files are warm from the second run on; the first does not count. Python must keep bytecode, as it does for an installed
package.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import bitnet_core

BITNET = (sys.executable, "-c", "from bitnet_core.cli.app import main; main()")


def command(repeat: int, *arguments: str) -> str:
    """Return medians in seconds, with the minimum in brackets."""
    first, whole = [], []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        with subprocess.Popen([*BITNET, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            first.append(time.perf_counter() - began)
            process.stdout.read()
        whole.append(time.perf_counter() - began)
        if process.returncode:
            raise SystemExit(f"bitnet {' '.join(arguments)} ended with {process.returncode}")
    return " / ".join(f"{statistics.median(times[1:]):.2f} ({min(times):.2f})" for times in (first, whole))


def load_seconds(repeat: int, file: str, device: str, layout: str | None) -> str:
    """Measure `load` in one process; return the same figures."""
    times = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        with bitnet_core.load(file, device, layout=layout):
            times.append(time.perf_counter() - began)
    return f"{statistics.median(times[1:]):.2f} ({min(times):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", "-d", default="auto")
    parser.add_argument("--layout")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    model = ["-m", arguments.model, "-d", arguments.device]
    model += ["--layout", arguments.layout] if arguments.layout else []
    print("seconds to the first byte / in all, medians (minimum)")
    print("bitnet devices", command(arguments.repeat, "devices"))
    print("bitnet run -n 1", command(arguments.repeat, "run", "--raw", "-n", "1", *model, "Once upon a time"))
    print("load", load_seconds(arguments.repeat, arguments.model, arguments.device, arguments.layout))


if __name__ == "__main__":
    main()
