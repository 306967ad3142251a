"""The process of `bitnet`, with so few imports before `main` that Ctrl-C ends it quietly from the start."""

import _thread
import os
import signal
import sys
import time

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the number of the signal, as in a shell."""


def main() -> None:
    """Run the program `bitnet`. Raises SystemExit at its end.

    If a signal ended the command, the process ends at once instead of waiting for drivers that are still busy.
    """
    sys.unraisablehook = _unraisable
    try:
        with EndedByInterrupt():
            from bitnet_core.cli.app import main as run
        run()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code > 128:
            os._exit(ended.code)
        raise
    finally:
        EndedByInterrupt().__enter__()  # the interpreter takes some time to end


class EndedByInterrupt:
    """A block in which Ctrl-C ends the process at once.

    For imports: nothing needs to be cleaned up then, and modules in C would lose a KeyboardInterrupt or show its
    traceback.
    """

    def __enter__(self) -> None:
        self._set = False
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or the caller's
            try:
                signal.signal(signal.SIGINT, _end)
                self._set = True
            except ValueError:  # not in the main thread, the only one that is interrupted
                pass

    def __exit__(self, *_: object) -> None:
        if self._set:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)


def _unraisable(failure: "sys.UnraisableHookArgs") -> None:
    """Repeat an interrupt that arrived in a destructor or a callback, which cannot raise it."""
    if failure.exc_type is KeyboardInterrupt:
        _thread.start_new_thread(_interrupt_soon, ())
    else:
        sys.__unraisablehook__(failure)


def _interrupt_soon() -> None:
    time.sleep(0.01)  # here and now it would be lost again
    _thread.interrupt_main()
