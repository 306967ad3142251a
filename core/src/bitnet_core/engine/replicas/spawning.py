"""Start the process of a device, which imports as much as the program that starts it: the sooner the better."""

from __future__ import annotations

import os
import subprocess
import sys

from bitnet_hal.errors import BitnetError


def spawned() -> subprocess.Popen[bytes]:
    """Start an interpreter with the packages of this one; it imports nothing of the program that runs here.

    Its group is its own, so that a Ctrl-C while it starts does not end it before it can ignore that. It ends with this
    process, also if it is never used. Raises BitnetError if no process can be started.
    """
    program = "import sys; sys.path[:0] = sys.argv[1:]; "
    program += "from bitnet_core.engine.replicas.worker_process import main; main()"
    folders = [folder for folder in sys.path if os.path.isabs(folder)]
    command = [sys.executable, "-X", "utf8", "-c", program, *folders]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=1 << 20,
            process_group=None if sys.platform == "win32" else 0,
        )
    except (OSError, ValueError) as exc:
        raise BitnetError(f"no process can be started for a device: {exc}") from exc
