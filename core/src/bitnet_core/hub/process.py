"""A child process that fetches a model: the bounded HTTP client would apply to the whole process."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Final

from bitnet_hal.errors import BitnetError, UsageError

from bitnet_core.errors import ModelError
from bitnet_core.hub.bounds import Bounds

Fetch = Callable[[Bounds, Callable[[str], None]], Path]

_KINDS: Final[dict[str, type[BitnetError]]] = {kind.__name__: kind for kind in (ModelError, UsageError)}
_START: Final = "import sys; sys.path[:] = sys.argv[2:]; from bitnet_core.hub.fetch import main; main(sys.argv[1])"
_VARIABLES: Final = {"HF_HUB_DISABLE_XET": "1"}  # Xet's library would bypass the bounded client


def in_child(reference: str, say: Callable[[str], None]) -> Path:
    """Fetch a model in a child process, which ends with this call. Raises the child's ModelError or UsageError."""
    command = [sys.executable, "-X", "utf8", "-c", _START, reference, *sys.path]
    environment = {**os.environ, **_VARIABLES}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                kind, text = json.loads(line)
                if kind == "path":
                    return Path(text)
                if kind in _KINDS:
                    raise _KINDS[kind](text)
                say(text)
        finally:
            child.kill()
    raise ModelError(f"{reference}: the process that fetches it ended with {child.returncode}; try again")


def serve(reference: str, fetch: Fetch) -> None:
    """Run in the child: fetch, and write lines of JSON: messages for the user, and finally the path or the error."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    Thread(target=_end_with_parent, daemon=True).start()

    def tell(kind: str, text: str) -> None:
        try:
            os.write(1, json.dumps([kind, text]).encode() + b"\n")
        except BrokenPipeError:  # the parent has just ended
            os._exit(1)

    def fail(error: BitnetError) -> None:
        tell(type(error).__name__ if type(error).__name__ in _KINDS else "ModelError", str(error))

    def broken(error: ModelError) -> None:
        fail(ModelError(f"{reference}: {error}"))
        os._exit(1)

    try:
        tell("path", str(fetch(Bounds(broken), lambda text: tell("say", text))))
    except BitnetError as error:
        fail(error)
    except KeyboardInterrupt:  # the parent gets it too
        os._exit(130)


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is written to it: it closes when the parent ends, even by SIGKILL
    os._exit(1)
