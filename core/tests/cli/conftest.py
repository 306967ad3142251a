"""Settings of the command line's tests."""

from __future__ import annotations

import pytest
from bitnet_core.measure import bandwidth


@pytest.fixture(autouse=True)
def little_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the measurement of the memory's speed in `bench`, which takes longer than a tiny model."""
    monkeypatch.setattr(bandwidth, "_HOST_BYTES", 16 << 20)
