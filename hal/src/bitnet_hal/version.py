"""The version of this package, which is the version of the contract (docs/backends/versioning.md)."""

from __future__ import annotations

__version__ = "2.1.0"

API_VERSION = (int(__version__.split(".")[0]), int(__version__.split(".")[1]))
"""(major, minor) of the contract. Core accepts a plugin with the same major and a minor that is not above it."""
