"""Every call of the device made to fail once: the text or the error, and every buffer given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bitnet_hal.errors import GpuError, LaunchError, OutOfMemoryError

ERRORS: dict[str, Callable[[], GpuError]] = {
    "memory": lambda: OutOfMemoryError("injected", requested=1, free=0, backend="numpy"),
    "launch": lambda: LaunchError("injected", backend="numpy"),
}
METHODS = {"alloc": 1, "upload": 1, "download": 1, "compile": 1, "record": 1, "replay": 3, "launch": 9}
"""Method -> every how manyth of its calls fails."""


def attempt(make_engine: Any, run_all: Any, device: Any, prompt: list[int]) -> list[int] | None:
    """The text, None where the injected error came out."""
    engine = None
    try:
        engine = make_engine("silu", device=device, max_sequences=2)
        request = engine.add_request(prompt, max_tokens=6)
        run_all(engine)
        return list(request.generated)
    except GpuError as error:
        if "injected" not in str(error) and "nothing is left to free" not in str(error):
            raise
        return None
    finally:
        if engine is not None:
            engine.free()
            left = list(device.inner._buffers)
            assert not left, f"{len(left)} buffers are not given back"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ERRORS)
def test_one_call_fails(faulty: Any, make_engine: Any, run_all: Any, tiny: Any, method: str, kind: str) -> None:
    prompt = list(tiny.PROMPT[:20])
    clean = faulty()
    expected = attempt(make_engine, run_all, clean, prompt)
    assert expected is not None
    for at in range(1, clean.calls[method] + 1, METHODS[method]):
        device = faulty()

        def fail(*_: Any, at: int = at, device: Any = device, **__: Any) -> None:
            if device.calls[method] == at:
                raise ERRORS[kind]()

        device.before[method] = fail
        assert attempt(make_engine, run_all, device, prompt) in (expected, None)
