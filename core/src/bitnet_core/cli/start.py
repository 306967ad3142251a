"""What makes a command start and end sooner."""

from __future__ import annotations

import gc
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
