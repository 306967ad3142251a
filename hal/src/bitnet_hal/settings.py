"""The user's configuration file. Environment variables override it, arguments override both.

It is TOML: `config.toml` in the user's configuration folder of bitnet, or the file named by BITNET_CONFIG:

    device = "vulkan"         # as BITNET_DEVICE
    log = "bitnet_core=info"  # as BITNET_LOG
    strict = true             # as BITNET_STRICT_MODE
"""

from __future__ import annotations

import os
import tomllib
from functools import cache
from pathlib import Path

import platformdirs

from bitnet_hal.errors import UsageError, short
from bitnet_hal.text_files import decoded

VARIABLE = "BITNET_CONFIG"
_LONGEST = 1 << 16
_KINDS: dict[str, type] = {"device": str, "log": str, "strict": bool}


def config_path() -> Path:
    """Return the path of the file, which need not exist."""
    named = os.environ.get(VARIABLE, "").strip()
    return Path(named) if named else platformdirs.user_config_path("bitnet", appauthor=False) / "config.toml"


def setting(name: str) -> str | bool | None:
    """Return a value of the file, None if it is not set. Raises UsageError if the file is invalid."""
    return _read(config_path(), bool(os.environ.get(VARIABLE, "").strip())).get(name)


@cache
def _read(path: Path, named: bool) -> dict[str, str | bool]:
    """Read and check the file; {} if it is missing. Raises UsageError if it is invalid, or missing but `named`."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LONGEST + 1)
    except FileNotFoundError:
        if named:
            raise UsageError(f"{VARIABLE}: there is no file {path}") from None
        return {}
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if len(raw) > _LONGEST:
        raise UsageError(f"{path} is longer than {_LONGEST} bytes")
    try:
        found = tomllib.loads(decoded(raw))
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{path} is not TOML: {exc}") from exc
    for name, value in found.items():
        if type(value) is not _KINDS.get(name):
            known = ", ".join(f"{key} ({kind.__name__})" for key, kind in _KINDS.items())
            raise UsageError(f"{path}: {short(name)} = {short(value)} is not a valid setting; there are {known}")
    return found
