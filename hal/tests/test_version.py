"""The package's version and the contract's are one."""

from __future__ import annotations

from importlib.metadata import version

from bitnet_hal.reference.plugin import NumpyBackend
from bitnet_hal.version import API_VERSION, __version__


def test_the_contracts_version_is_the_packages() -> None:
    assert version("bitnet-hal") == __version__
    assert f"{API_VERSION[0]}.{API_VERSION[1]}." in f"{__version__}."


def test_the_reference_keeps_up_with_it() -> None:
    assert NumpyBackend.api == API_VERSION
