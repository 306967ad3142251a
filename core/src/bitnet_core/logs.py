"""Log levels per package, from BITNET_LOG, and the logs of compilers."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import platformdirs
from bitnet_hal.errors import KernelCompileError, UsageError
from bitnet_hal.output import new_file

LEVELS = ("debug", "info", "warning", "error")

_ENTRY = re.compile(r"(?:([A-Za-z_][\w.]*)=)?(\w+)", re.ASCII)


def configure_logging(levels: str) -> None:
    """Send log records to stderr: warnings, and the levels set by `levels`, such as
    "bitnet_core=debug,bitnet_cuda=info".

    An entry without a package ("debug") sets the level of everything. Raises UsageError for text outside the grammar.
    """
    wanted: dict[str, int] = {}
    for entry in (part.strip() for part in levels.split(",")):
        if not entry:
            continue
        match = _ENTRY.fullmatch(entry)
        if match is None or match[2].lower() not in LEVELS:
            raise UsageError(
                f"BITNET_LOG: '{entry}' is not <package>=<level> with a level of {', '.join(LEVELS)}; "
                "for example BITNET_LOG=bitnet_core=debug,bitnet_cuda=info"
            )
        wanted[match[1] or ""] = getattr(logging, match[2].upper())
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    for package, level in wanted.items():
        logging.getLogger(package).setLevel(level)


def log_hint(error: BaseException) -> str:
    """Save a compiler's whole log, and return a line with its path for the user; "" if the error has no log."""
    if not isinstance(error, KernelCompileError) or not error.log:
        return ""
    folder = Path(platformdirs.user_log_dir("bitnet", appauthor=False))
    name = re.sub(r"[^\w-]", "_", f"compile-{error.backend}-{error.kernel}", flags=re.ASCII)[:100]
    path = folder / f"{name}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_file(path, force=True) as file:
            file.write(f"{error.log}\n".encode("utf-8", "backslashreplace"))
    except (OSError, UsageError) as exc:
        return f"\nThe compiler's log could not be kept: {exc}"
    return f"\nThe compiler's whole log: {path}"
