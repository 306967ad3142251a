"""Random ids that cost no call of the system each: the engine's thread takes the interpreter's lock at every one."""

from __future__ import annotations

import os
from threading import Lock

_BYTES = 4096

_lock = Lock()
_unused = b""


def random_hex(nbytes: int) -> str:
    """Return so many random bytes as hexadecimal digits; nobody can guess them."""
    global _unused
    with _lock:
        if len(_unused) < nbytes:
            _unused = os.urandom(_BYTES)
        taken, _unused = _unused[:nbytes], _unused[nbytes:]
    return taken.hex()
