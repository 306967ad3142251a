"""Devices for tests of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def async_device(faulty: Any) -> Callable[[], Any]:
    """A numpy device with the feature."""

    class Reading(faulty):  # type: ignore[misc]  # a fixture's class
        def read_async(self, view: Any) -> Callable[[memoryview], None]:
            self.calls["read_async"] = self.calls.get("read_async", 0) + 1
            kept = bytearray(view.nbytes)
            self.inner.download(view, memoryview(kept))

            def read(target: memoryview) -> None:
                target.cast("B")[:] = kept

            return read

    return lambda: Reading(features=frozenset({"async-readback"}))
