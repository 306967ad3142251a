"""Make every call of a device fail once, and lose devices in the middle of a text.

    python benchmarks/reliability/faults.py --device numpy --losses 100

The calls of each method are counted in a clean run; then each in turn (--every N: each N-th) fails with each kind of
error. A run must end with the error or with the text of the clean run, release every buffer, and not hang. The figures
of one run are in docs/reliability.md. Exits with 1 on any other result.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from bitnet_core.api.loading import open_source
from bitnet_core.engine.engine import Engine
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_hal.discovery.selection import open_device
from bitnet_hal.errors import DeviceLostError, GpuError, GpuTimeoutError, LaunchError, OutOfMemoryError

METHODS = (
    "alloc",
    "upload",
    "download",
    "copy",
    "compile",
    "launch",
    "record",
    "replay",
    "synchronize",
    "wrap",
    "tuning",
)
PROMPT = [5, 17, 99, 250, 12, 7, 300, 41, 8]
TOKENS = 12
HANGS = 60.0

ERRORS: dict[str, Callable[[], GpuError]] = {
    "out of memory": lambda: OutOfMemoryError("injected", requested=1, free=0, backend="test"),
    "launch": lambda: LaunchError("injected", backend="test"),
    "timeout": lambda: GpuTimeoutError("injected", backend="test"),
    "lost": lambda: DeviceLostError("injected", backend="test"),
}


class Faulty:
    """A device whose chosen call fails: once, or, if it is lost, from then on."""

    def __init__(self, inner: Any, method: str = "", at: int = 0, kind: str = "") -> None:
        self.inner, self.info = inner, inner.info
        self.calls: Counter[str] = Counter()
        self.buffers = 0
        self.closed = False
        self._fault = method, at, kind

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in METHODS:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            method, at, kind = self._fault
            if name == method and (self.calls[name] == at or (kind == "lost" and self.calls[name] > at)):
                self.fail(kind)
            result = found(*arguments, **named)
            self.buffers += name in ("alloc", "wrap") and result is not None
            return result

        return call

    def fail(self, kind: str) -> None:
        """Fail as `kind` demands, instead of or before the chosen call."""
        raise ERRORS[kind]()

    def free(self, buffer: Any) -> None:
        self.buffers -= 1
        self.inner.free(buffer)

    def close(self) -> None:
        self.closed = True
        self.inner.close()


def text(source: ModelSource, device: Any, reopen: Callable[[GpuError], Any] | None = None) -> list[int]:
    """Return the tokens that an engine on the device generates; the engine is closed in any case."""
    engine = None
    try:
        engine = Engine(source, device, EngineOptions(context=64, max_sequences=2), reopen=reopen)
        request = engine.add_request(PROMPT, max_tokens=TOKENS)
        while engine.step():
            pass
        if request.error is not None:
            raise request.error
        return list(request.generated)
    finally:
        if engine is not None:
            engine.close()
        else:
            device.close()


def outcome(source: ModelSource, device: Faulty, expected: list[int]) -> str:
    """Return the result of a run with a fault: "text", "error", or a description of a violation."""
    results: list[str] = []

    def work() -> None:
        try:
            results.append("text" if text(source, device) == expected else "another text")
        except GpuError as error:
            results.append(
                "error" if "injected" in str(error) or "bytes requested" in str(error) else f"error: {error}"
            )
        except BaseException as error:  # noqa: BLE001 - this is what is looked for
            results.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HANGS)
    if thread.is_alive():
        return "hangs"
    if device.buffers and results[0] == "text":
        return f"{device.buffers} buffers were not released"
    return results[0] if device.closed else "the device was not closed"


def sweep(source: ModelSource, name: str, every: int) -> Counter[str]:
    """Count the outcomes of all faults."""
    clean = Faulty(open_device(name)[0])
    expected = text(source, clean)
    found: Counter[str] = Counter()
    for method, calls in sorted(clean.calls.items()):
        for kind in ERRORS:
            for at in range(1, calls + 1, every):
                result = outcome(source, Faulty(open_device(name)[0], method, at, kind), expected)
                found[result] += 1
                if result not in ("text", "error"):
                    print(f"{method} {at} of {calls}, {kind}: {result}", flush=True)
    return found


def losses(source: ModelSource, name: str, count: int) -> int:
    """Return the number of texts, of `count` with a loss in the middle, that equal the undisturbed text."""
    clean = Faulty(open_device(name)[0])
    expected = text(source, clean)
    calls = [(method, at) for method in ("launch", "replay", "download") for at in range(1, clean.calls[method] + 1)]
    same = 0
    for number in range(count):
        method, at = calls[number * len(calls) // count]
        device = Faulty(open_device(name)[0], method, at, "lost")
        same += text(source, device, lambda _: open_device(name)[0]) == expected
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="numpy")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--losses", type=int, default=100)
    arguments = parser.parse_args()
    source = open_source(None, None, False, True)
    began = time.perf_counter()
    same = losses(source, arguments.device, arguments.losses)
    print(f"{arguments.device}: {same} of {arguments.losses} texts are equal after a loss", flush=True)
    found = sweep(source, arguments.device, arguments.every)
    print(
        f"{arguments.device}: {sum(found.values())} faults: {dict(found)}, {time.perf_counter() - began:.0f} s in all"
    )
    sys.exit(same != arguments.losses or set(found) - {"text", "error"} != set())


if __name__ == "__main__":
    main()
