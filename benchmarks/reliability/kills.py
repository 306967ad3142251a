"""Test the files left by a process that is killed while it writes, and by two that write to one place.

    python benchmarks/reliability/kills.py --kills 50

A conversion is killed (SIGKILL) at random moments: the destination must be absent or complete. Exits with 1 on any
other result.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

STORIES = Path(str(files("bitnet_core"))) / "data" / "stories.gguf"
MAIN = [sys.executable, "-c", "from bitnet_core.cli.app import main; main()"]


def convert(destination: Path) -> list[str]:
    return [*MAIN, "convert", str(STORIES), str(destination), "--to", "tq2_0", "--force"]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def killed(folder: Path, kills: int) -> tuple[int, int, int]:
    """Return the counts of (nothing at the destination, whole file, anything else)."""
    whole = folder / "whole.gguf"
    began = time.monotonic()
    subprocess.run(convert(whole), check=True, capture_output=True)
    seconds, expected = time.monotonic() - began, sha256(whole)
    draw, counts = random.Random(1), [0, 0, 0]
    for number in range(kills):
        place = folder / f"{number}.gguf"
        with subprocess.Popen(convert(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(seconds * draw.uniform(0.5, 1.1))
            process.kill()
        counts[(1 if sha256(place) == expected else 2) if place.exists() else 0] += 1
    return counts[0], counts[1], counts[2]


def at_once(folder: Path) -> bool:
    """Return whether two conversions to one place leave one whole file."""
    place = folder / "shared.gguf"
    both = [subprocess.Popen(convert(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    codes = [process.wait() for process in both]
    return codes == [0, 0] and sha256(place) == sha256(folder / "whole.gguf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        nothing, whole, else_ = killed(folder, arguments.kills)
        print(
            f"{arguments.kills} conversions killed: {nothing} left nothing, {whole} a whole file, {else_} anything else"
        )
        shared = at_once(folder)
        print(f"two conversions to one place: {'one whole file' if shared else 'damaged'}")
    sys.exit(bool(else_ or not shared))


if __name__ == "__main__":
    main()
