"""The pipes of a spawned process to its parent."""

from __future__ import annotations

import os
import signal
import sys
from typing import IO


def own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return the pipes from and to the program that `spawned` this process.

    Signals that a terminal or a service manager sends to the process group are ignored: this process ends when its
    parent closes the pipe. Stdout is redirected, so that the output of drivers does not mix with messages.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    receiving, sending = os.dup(0), os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return os.fdopen(receiving, "rb"), os.fdopen(sending, "wb")
