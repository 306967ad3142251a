"""The process of a command while it starts: its environment and its garbage."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from bitnet_hal.discovery.known import KNOWN


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection in the block: what is imported there are many objects that stay, and looking through them
    again and again takes a tenth of a second. Nor are they looked through later, until gc.unfreeze()."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


def prepare_environment() -> None:
    """Set what helps drivers, in this process and before any of them is loaded; a program that uses the library does so
    itself."""
    for backend in KNOWN.values():
        for name, value in backend.helpful:
            os.environ.setdefault(name, value)
    # Mesa's choice of a device connects to Wayland, whose library writes a line to stderr for each try without
    # XDG_RUNTIME_DIR; a display with an absolute name is tried without a word, and is as absent
    folder, display = os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("WAYLAND_DISPLAY", "")
    if os.name == "posix" and not folder.startswith("/") and not display.startswith("/"):
        os.environ["WAYLAND_DISPLAY"] = os.devnull
