"""Test caches that processes share while some of them are killed: compiled programs, drivers' answers, the hub's files.

    python benchmarks/reliability/caches.py --kills 50

Writers are killed (SIGKILL) at random moments while others continue. Every loaded program must be the stored one, the
drivers' file must always be one that a writer wrote completely, and a pull after a kill must yield the whole file. The
hub is an imitation on the loopback. Needs fork and bitnet-core[hub,test]. Exits with 1 on any other result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bitnet_hal.discovery import driver_cache
from bitnet_hal.driver.program_cache import ProgramCache

sys.path.insert(0, str(Path(__file__).parents[2] / "core" / "tests" / "hub"))

WRITERS = 4
KEYS = 20


def forked(work: Callable[[], object]) -> int:
    """Run `work` in a child process and return its id; the child exits with 0, or with 1 and a message."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent wants to know
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)


def ended_well(child: int) -> bool:
    return os.waitpid(child, 0)[1] == 0


def program(key: int) -> bytes:
    """Return the content stored under a key, 100 to 290 kB."""
    return hashlib.sha256(str(key).encode()).digest() * (3200 + 300 * key)


def use_programs(folder: Path, seconds: float, seed: int) -> None:
    """Load and store at random. Raises if a loaded program is not the stored one."""
    cache, draw = ProgramCache("shared", folder, limit=3 << 20), random.Random(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number = draw.randrange(KEYS)
        key = ProgramCache.key(str(number))
        found = cache.load(key)
        if found is None:
            cache.store(key, program(number))
        elif found != program(number):
            raise AssertionError(f"program {number} is not the stored one")


def use_answers(seconds: float, seed: int) -> None:
    """Write and read the drivers' file. Raises unless it is always there and complete."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        driver_cache.write({str(key): {"time": time.time(), "reason": "x" * seed} for key in range(300)})
        if len(driver_cache.read()) != 300:
            raise AssertionError("the drivers' file is not complete")


def shared(what: str, use: Callable[[float, int], None], kills: int) -> bool:
    """Return whether every check held while one writer after the other was killed beside others."""
    draw, sound = random.Random(1), True
    steady = [forked(lambda seed=seed: use(0.05 * kills + 1, seed)) for seed in range(1, WRITERS)]  # type: ignore[misc]
    for number in range(kills):
        victim = forked(lambda seed=number: use(60.0, 100 + seed))  # type: ignore[misc]
        time.sleep(draw.uniform(0.005, 0.1))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
    for child in steady:
        sound &= ended_well(child)
    end = "all sound" if sound else "DAMAGED"
    print(f"{what}: {kills} writers killed beside {WRITERS - 1} others, {end}", flush=True)
    return sound


def pulls(scratch: Path, kills: int) -> bool:
    """Return whether killed pulls, and two pulls at once, end in the whole file."""
    os.environ |= {"HF_HOME": str(scratch / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    from test_pull import GGUF, Hub

    hub = Hub()
    hub.handle_error = lambda *_: None  # a killed client
    os.environ["HF_ENDPOINT"] = hub.url
    from bitnet_core.hub import fetch  # imported late, because it reads the variables
    from bitnet_core.hub.reference import Reference

    hub.files = {GGUF: random.Random(1).randbytes(32 << 20)}
    threading.Thread(target=hub.serve_forever, daemon=True).start()

    def pull() -> Any:
        return fetch.pull(Reference.parse("hf:tiny/model"), lambda _: None)

    def emptied() -> None:
        for path in sorted((scratch / "hf").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

    began = time.monotonic()
    sound = ended_well(forked(pull))
    seconds, draw, cut = time.monotonic() - began, random.Random(1), 0
    for _ in range(kills):
        emptied()
        child = forked(pull)
        time.sleep(seconds * draw.uniform(0.1, 0.9))
        os.kill(child, signal.SIGKILL)
        cut += os.waitpid(child, 0)[1] != 0
        sound &= pull().read_bytes() == hub.files[GGUF]
    whole = "the whole file each time" if sound else "DAMAGED"
    print(f"pull: {cut} of {kills} killed before the end; the next pull: {whole}", flush=True)
    emptied()
    first, second = forked(pull), forked(pull)
    together = ended_well(first) & ended_well(second)
    together &= pull().read_bytes() == hub.files[GGUF]
    print(f"pull: two at once: {'one whole file' if together else 'DAMAGED'}")
    return sound and together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
        sound = shared("programs", lambda s, seed: use_programs(scratch / "programs", s, seed), arguments.kills)
        sound &= shared("drivers' answers", use_answers, arguments.kills)
        left = {path.name for path in (scratch / "cache" / "bitnet").iterdir() if path.suffix != ".tmp"}
        sound &= left == {"drivers.json"} and isinstance(json.loads(driver_cache.path().read_bytes()), dict)
        sound &= pulls(scratch, arguments.kills)
    sys.exit(not sound)


if __name__ == "__main__":
    main()
