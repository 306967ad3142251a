"""The version of this distribution."""

from __future__ import annotations

import importlib_metadata


def core_version() -> str:
    """Return the installed version; "source" for a source tree that is not installed."""
    try:
        return importlib_metadata.version("bitnet-core")
    except importlib_metadata.PackageNotFoundError:
        return "source"
