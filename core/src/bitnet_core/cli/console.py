"""Output for people and programs: everything but a command's result goes to stderr."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from bitnet_core.cli.standard_streams import result
from bitnet_core.cli.wrapping import WordWrap

if TYPE_CHECKING:  # rich is imported on use, so that help appears at once
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from bitnet_core.engine.output import TextChunk

_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # bidirectional embeddings

_quiet = False

ProgressCallback = Callable[[str, int, int], None]
"""progress(activity, units done, units in all)"""


@cache
def stderr() -> Console:
    """Return the console on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str, style: str = "dim") -> None:
    """Print a line on stderr."""
    if sys.stderr.isatty():
        stderr().print(harmless(text), style=style, markup=False, soft_wrap=False)
    else:  # the output is the same without rich, whose import takes time
        sys.stderr.write(harmless(text) + "\n")


def be_quiet(wanted: bool) -> None:
    """Set whether the program prints only results, warnings and errors (--quiet)."""
    global _quiet
    _quiet = wanted


def note(text: str) -> None:
    """Print a line on stderr, unless --quiet is set."""
    if not _quiet:
        say(text)


def echo_prompt(text: str) -> None:
    """Print the prompt before the text that continues it, if stdout is a terminal."""
    if result().isatty() and stderr().is_terminal:
        stderr().print(harmless(text), style="dim", end="", markup=False)


def write_text(text: str) -> None:
    """Write a chunk of the result and flush it."""
    out = result()
    out.write(harmless(text) if out.isatty() else text)
    out.flush()


class ReplyWriter:
    """A reply that is written chunk by chunk.

    On a terminal its reasoning is written too, dim, with an empty line after it. wrap: break lines between words on a
    terminal; the reply has to begin at the start of a line.
    """

    def __init__(self, wrap: bool = False) -> None:
        self._reasoned = False
        self._wrap = WordWrap() if wrap and result().isatty() else None

    def write(self, chunk: TextChunk) -> None:
        """Write the next chunk."""
        if chunk.reasoning:
            self._dim(self._wrapped(chunk.reasoning))
            self._reasoned = True
        if chunk.text:
            if self._reasoned:
                self._dim(self._wrapped("\n\n"))
                self._reasoned = False
            write_text(self._wrapped(chunk.text))

    def end(self) -> None:
        """Write the held-back text and the end of the line."""
        if self._wrap and self._reasoned:
            self._dim(self._wrap.rest())
        elif self._wrap:
            write_text(self._wrap.rest())
        write_text("\n")

    def _wrapped(self, text: str) -> str:
        return self._wrap.push(harmless(text)) if self._wrap else text

    def _dim(self, text: str) -> None:
        if result().isatty():
            result().write(f"\x1b[2m{harmless(text)}\x1b[0m")
            result().flush()


def harmless(text: str) -> str:
    """Return the text without control characters and changes of direction.

    With these a model's output or a file's name could control the terminal or disguise text.
    """
    return "".join(c for c in text if c in "\n\t" or (unicodedata.category(c) != "Cc" and c not in _DIRECTIONS))


def cell(text: object, style: str = "") -> Text:
    """Return the text for a cell of a table, without markup and escape sequences."""
    from rich.text import Text

    return Text(harmless(str(text)), style, overflow="fold")


def print_line(text: object) -> None:
    """Print a command's result or a line of it (`print` and `typer.echo` write to stderr: see `streams`)."""
    result().write(f"{text}\n")


def print_json(document: Any) -> None:
    """Print a command's result under --json: one document on stdout."""
    result().write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_table(table: Table) -> None:
    """Print a table on stdout; in a pipe its lines are whole and have no trailing blanks."""
    from rich.console import Console

    console = Console(highlight=False, file=result())
    if console.is_terminal:
        console.print(table)
        return
    console = Console(highlight=False, width=200)
    with console.capture() as capture:
        console.print(table)
    result().writelines(line.rstrip() + "\n" for line in capture.get().splitlines())


@contextmanager
def progress_bar(first: str = "") -> Iterator[ProgressCallback | None]:
    """Yield a progress callback that draws bars beside a spinner while the block runs.

    Yields None if stderr is not a terminal, or under --quiet. first: a line that is shown until the first bar.
    """
    if _quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars

    columns = (bars.SpinnerColumn(), bars.TextColumn("{task.description}"), bars.BarColumn())
    figures = (bars.TaskProgressColumn(), bars.TimeElapsedColumn())
    with bars.Progress(
        *columns, *figures, console=stderr(), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        tasks: dict[str, bars.TaskID] = {}
        waiting = [progress.add_task(first, total=None)] if first else []

        def update(what: str, done: int, total: int) -> None:
            if waiting:
                progress.remove_task(waiting.pop())
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield update
