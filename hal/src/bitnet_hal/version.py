"""The version of this package, which is the version of the contract (docs/backends/versioning.md)."""

from __future__ import annotations

__version__ = "2.1.0"

API_VERSION = (int(__version__.split(".")[0]), int(__version__.split(".")[1]))
"""(major, minor) of the contract. A plugin is accepted if its major is equal and its minor is not higher."""
