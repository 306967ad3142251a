"""What is left when a process is killed while it writes, when two share what they write, and when the disk is full.

    python benchmarks/reliability/kills.py --kills 50

A conversion is killed (SIGKILL) at random moments: at its destination there must be nothing, or the whole file. Linux
only; a full disk is made with a small tmpfs, which needs root. Exits with 1 if anything else is found.
"""

from __future__ import annotations

import argparse
import hashlib
import os
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
    """(nothing there, whole file there, anything else)."""
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
    """Whether two conversions to one place leave one whole file."""
    place = folder / "shared.gguf"
    both = [subprocess.Popen(convert(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    codes = [process.wait() for process in both]
    return codes == [0, 0] and sha256(place) == sha256(folder / "whole.gguf")


def full_disk(folder: Path) -> list[str]:
    """What is wrong with how a full disk is met."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        (disk / "filler").write_bytes(b"x" * (60 << 10))
        run = ["run", "x", "-n", "1", "--device", "numpy", "--receipt", str(disk / "receipt.json")]
        found = []
        for command, code in ((convert(disk / "a.gguf"), 3), ([*MAIN, *run], 14)):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != code or "No space left" not in done.stderr or os.listdir(disk) != ["filler"]:
                found.append(f"{command[3]}: code {done.returncode}, {done.stderr.strip()}, {os.listdir(disk)}")
            (disk / "filler").write_bytes(b"x" * (64 << 10))
        return found
    finally:
        subprocess.run(["umount", str(disk)], check=True)


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
        problems = full_disk(folder) if os.geteuid() == 0 else []
        print(
            "full disk: " + ("; ".join(problems) or ("as it should be" if os.geteuid() == 0 else "not tried, no root"))
        )
    sys.exit(bool(else_ or not shared or problems))


if __name__ == "__main__":
    main()
