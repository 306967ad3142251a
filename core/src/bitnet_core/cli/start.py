"""The environment, garbage collection and threads of a command's process. A library leaves them to its program."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bitnet_hal.discovery.known import KNOWN


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch garbage collection off in the block, and exclude its objects from later collections until gc.unfreeze().

    Imports make many objects that stay; examining them again and again takes a tenth of a second.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


def exclude_from_collection() -> None:
    """Exclude all present objects, such as a model's vocabulary, from later collections.

    Each of these would stop every thread for tens of milliseconds. What an earlier model left behind is collected now.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def turns_of_threads(seconds: float) -> Iterator[None]:
    """Within the block, let threads that wait for the interpreter's lock have it after this many seconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def prepare_environment() -> None:
    """Set environment variables that help drivers, before any of them is loaded.

    Only for the program `bitnet`: the library leaves the environment to the program that uses it.
    """
    for backend in KNOWN.values():
        for name, value in backend.defaults:
            os.environ.setdefault(name, value)
    # Mesa's choice of a device connects to Wayland, whose library writes a line to stderr for each try without
    # XDG_RUNTIME_DIR; a display with an absolute name is tried without a message
    folder, display = os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("WAYLAND_DISPLAY", "")
    if os.name == "posix" and not folder.startswith("/") and not display.startswith("/"):
        os.environ["WAYLAND_DISPLAY"] = os.devnull
