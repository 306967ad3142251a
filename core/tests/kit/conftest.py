"""The kit is tried on the real numpy device."""

import pytest


@pytest.fixture(autouse=True)
def stub_numpy() -> None:
    """Leave the reference backend alone, unlike the tests of discovery."""
