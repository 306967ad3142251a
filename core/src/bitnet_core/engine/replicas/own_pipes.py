"""The pipes of a process that another one of this program has spawned."""

from __future__ import annotations

import os
import signal
import sys
from typing import IO


def own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return the pipes from and to the program that `spawned` this process, which ends with that program alone.

    Signals of a terminal or a service's group are ignored, and nothing else is written to the pipe: what drivers print
    is no message.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    receiving, sending = os.dup(0), os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return os.fdopen(receiving, "rb"), os.fdopen(sending, "wb")
