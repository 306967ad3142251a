"""The process of a command before and while it starts: sooner, and without words of others."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


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


def look_for_no_display() -> None:
    """Drivers that look for a display, which is of no use here, say so on stderr where there is none: Mesa's choice
    of a device connects to Wayland, whose library writes a line for each try without XDG_RUNTIME_DIR. A display with an
    absolute name is tried without a word, and is as absent."""
    folder, display = os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("WAYLAND_DISPLAY", "")
    if os.name == "posix" and not folder.startswith("/") and not display.startswith("/"):
        os.environ["WAYLAND_DISPLAY"] = os.devnull
