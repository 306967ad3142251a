"""The streams of the program `bitnet`: nothing but its result reaches stdout, whatever else in the process prints.

Plugins, drivers and the compilers that they start print to `sys.stdout` and to file descriptor 1. The program therefore
writes its result to a copy of that descriptor, and 1 itself leads to stderr until the process ends. Only the program
does this, in its main thread and before any other one begins: the library leaves all streams as they are.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

_apart: TextIO | None = None
"""The stream of the result, after `keep_result_apart`."""


def open_streams() -> None:
    """Set all streams to UTF-8, and replace streams that the caller closed by empty ones.

    A text that has no UTF-8 form (a file name of other bytes) is written with escapes, which JSON has too. Without the
    replacement a file that is opened later would take the place of a closed stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                while os.open(os.devnull, os.O_RDWR) < number:
                    pass
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115 - kept open
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if number else "strict")


def keep_result_apart() -> None:
    """Redirect everything that is printed to stderr, and keep stdout for the result.

    Does nothing in a process that has replaced `sys.stdout`.
    """
    global _apart
    own = sys.__stdout__
    if _apart is not None or own is None or sys.stdout is not own or own.fileno() != 1:
        return
    own.flush()
    _apart = open(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - until the process ends
    os.dup2(2, 1)


def result() -> TextIO:
    """Return the stream of the command's result."""
    return _apart or sys.stdout


@contextmanager
def printed_as_result() -> Iterator[None]:
    """Send the output of Python code in the block to the result: help, and commands of plugins."""
    with redirect_stdout(result()):
        yield


@contextmanager
def printed_to_stderr() -> Iterator[None]:
    """Keep the output of Python code in the block out of the result.

    Decorates core's own commands, which write theirs to `result()`.
    """
    with redirect_stdout(sys.__stdout__ if _apart else sys.stdout):
        yield


def discard() -> None:
    """Drop the unwritten part of the result."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, result().fileno())
        os.close(nothing)


def read_line(prompt: str) -> str:
    """Read a line of stdin, without its end. Raises EOFError at the end of the input.

    On a terminal the prompt is shown, the line can be edited and Up recalls earlier ones, even if stdout or stderr is
    redirected.
    """
    shown = next((stream for stream in (sys.stderr, result()) if stream.isatty()), None)
    if shown is None or not sys.stdin.isatty():
        return input()
    with suppress(ImportError):  # Windows has its own
        import readline  # noqa: F401 - gives input() history and editing
    if _apart is None:
        return input(prompt)
    os.dup2(shown.fileno(), 1)  # input() edits only if 1 is a terminal
    try:
        return input(prompt)
    finally:
        os.dup2(2, 1)
