"""Start processes of this program that talk to it over two pipes; they import as much as it does: the sooner the
better."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection

from bitnet_hal.errors import BitnetError

WORKER = "bitnet_core.engine.replicas.worker_process"
"""The program of a device's process."""


def spawned(module: str = WORKER, descriptors: Collection[int] = ()) -> subprocess.Popen[bytes]:
    """Start an interpreter with the packages of this one, which calls main() of a module; it imports nothing of the
    program that runs here. descriptors: files that it has open too.

    Its group is its own, so that a Ctrl-C while it starts does not end it before it can ignore that. It ends with this
    process, also if it is never used. Raises BitnetError if no process can be started.
    """
    program = f"import sys; sys.path[:0] = sys.argv[1:]; from {module} import main; main()"
    folders = [folder for folder in sys.path if os.path.isabs(folder)]
    command = [sys.executable, "-X", "utf8", "-c", program, *folders]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=1 << 20,
            pass_fds=descriptors,
            process_group=None if sys.platform == "win32" else 0,
        )
    except (OSError, ValueError) as exc:
        raise BitnetError(f"no process can be started: {exc}") from exc
