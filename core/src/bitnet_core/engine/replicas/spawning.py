"""Start child processes that communicate over two pipes. Their imports take long, so start them early."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection

from bitnet_hal.errors import BitnetError

WORKER = "bitnet_core.engine.replicas.worker_process"
"""The module that the process of a device runs."""


def spawned(module: str = WORKER, descriptors: Collection[int] = ()) -> subprocess.Popen[bytes]:
    """Start an interpreter with the import path of this one, which calls main() of a module and does not import this
    program's __main__. descriptors: file descriptors that it inherits.

    It has a process group of its own, because a Ctrl-C could end it before it ignores the signal. It ends with this
    process, even if it is never used. Raises BitnetError if no process can be started.
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
