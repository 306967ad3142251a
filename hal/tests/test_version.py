"""The version of the package is the version of the contract."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.reference.plugin import NumpyBackend
from bitnet_hal.version import API_VERSION, __version__

PAGE = Path(__file__).parents[2] / "docs" / "backends" / "versioning.md"


def test_the_contracts_version_is_the_packages() -> None:
    assert version("bitnet-hal") == __version__
    assert f"{API_VERSION[0]}.{API_VERSION[1]}." in f"{__version__}."


def test_the_reference_keeps_up_with_it() -> None:
    assert NumpyBackend.api == API_VERSION


@pytest.mark.skipif(not PAGE.exists(), reason="runs in a checkout of the repository")
def test_the_page_lists_every_kernel_and_this_version() -> None:
    """The page of versions has a row for every kernel and for this version."""
    page = PAGE.read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    listed = {name for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row)}
    assert not set(CATALOGUE) - listed
    assert any(row.strip() == f"{API_VERSION[0]}.{API_VERSION[1]}" for row in rows)
