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
"""The result's own stream, once it is kept apart."""


def open_streams() -> None:
    """UTF-8 everywhere; a text that has none (a file name of other bytes) is written as escapes, which JSON has too.
    Streams that the caller closed become empty ones, so that no file that is opened later takes their place."""
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
    """From here on what is printed goes to stderr, and the result alone to stdout. Nothing is done in a process that
    has put a stream of its own in the place of `sys.stdout`."""
    global _apart
    own = sys.__stdout__
    if _apart is not None or own is None or sys.stdout is not own or own.fileno() != 1:
        return
    own.flush()
    _apart = open(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - until the process ends
    os.dup2(2, 1)


def result() -> TextIO:
    """The stream of the command's result."""
    return _apart or sys.stdout


@contextmanager
def printed_as_result() -> Iterator[None]:
    """What Python code prints in the block is the result: help, and commands of plugins."""
    with redirect_stdout(result()):
        yield


@contextmanager
def printed_to_stderr() -> Iterator[None]:
    """What Python code prints in the block is no part of the result. As a decorator: for core's own commands, which
    write theirs to `result()`."""
    with redirect_stdout(sys.__stdout__ if _apart else sys.stdout):
        yield


def discard() -> None:
    """What the stream of the result still holds is not tried again."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, result().fileno())
        os.close(nothing)


def read_line(prompt: str) -> str:
    """A line of stdin, without its end; EOFError where there is none. At a terminal it is asked for by the prompt, can
    be edited, and Up brings earlier ones back, also where stdout or stderr leads elsewhere."""
    shown = next((stream for stream in (sys.stderr, result()) if stream.isatty()), None)
    if shown is None or not sys.stdin.isatty():
        return input()
    with suppress(ImportError):  # Windows has its own
        import readline  # noqa: F401 - gives input() history and editing
    if _apart is None:
        return input(prompt)
    os.dup2(shown.fileno(), 1)  # input() edits only where 1 is a terminal
    try:
        return input(prompt)
    finally:
        os.dup2(2, 1)
