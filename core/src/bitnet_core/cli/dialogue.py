"""Entries of `bitnet chat`: messages of one line or several, and commands."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from bitnet_hal.text_files import BOM

COMMANDS = {
    "/help": "lists the commands",
    "/system TEXT": "starts again with another system message; without TEXT, with none",
    "/clear": "forgets the conversation",
    "/exit": "ends the program, as Ctrl-D does",
}
QUOTES = '"""'
ALIASES = {"/?": "/help", "/bye": "/exit", "/quit": "/exit", "/reset": "/clear"}
_NAMES = {shown.split()[0]: " " in shown for shown in COMMANDS}  # True if a text may follow
_COMMAND = re.compile(r"/(?:\?|[A-Za-z]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """A message, a command with its text, or an error message about an unknown command."""

    text: str = ""
    command: str = ""
    complaint: str = ""


def read_entry(ask: Callable[[bool], str | None]) -> Entry | None:
    """Return the next entry that is not empty; None at the end of the input.

    ask(more) returns a line as it was typed, or None; more: it continues a message of several lines.
    """
    while (line := ask(False)) is not None:
        line = line.removeprefix(BOM)
        if line.strip().startswith(QUOTES):
            if text := _quoted(line.strip().removeprefix(QUOTES), ask):
                return Entry(text)
        elif line.strip():
            return _entry(line, ask)
    return None


def _quoted(line: str | None, ask: Callable[[bool], str | None]) -> str:
    """Return the lines up to the closing quotes or the end of the input."""
    lines = []
    while line is not None:
        if line.rstrip().endswith(QUOTES):
            lines.append(line.rstrip().removesuffix(QUOTES))
            break
        lines.append(line)
        line = ask(True)
    return "\n".join(lines).strip()


def _entry(line: str, ask: Callable[[bool], str | None]) -> Entry:
    """Parse a line, and the further lines of a message. A path, or a line with a leading blank, is always a message."""
    first, *more = line.split(maxsplit=1)
    rest = more[0].strip() if more else ""
    name = ALIASES.get(first.lower(), first.lower())
    is_path = name not in _NAMES and os.path.exists(first)  # Path.exists raises an error if the line is too long
    if line[0].isspace() or not _COMMAND.fullmatch(first) or is_path:
        return Entry(line.strip())
    if name not in _NAMES:
        near = get_close_matches(name, _NAMES, 1, _ALIKE)
        hint = f"the closest is {near[0]}" if near else "/help lists the commands"
        return Entry(complaint=f"There is no {first}; {hint}. {_AS_A_MESSAGE}")
    if rest and not _NAMES[name]:
        return Entry(complaint=f"Nothing follows {name}. {_AS_A_MESSAGE}")
    if rest.startswith(QUOTES):
        rest = _quoted(rest.removeprefix(QUOTES), ask)
    return Entry(rest, name)


_ALIKE = 0.7  # two exchanged letters of a command of four; more differ in /tmp and /home
_AS_A_MESSAGE = "A blank before it sends the line as a message."


def command_list() -> str:
    """Return the list of commands."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"{shown:{width}}{does}" for shown, does in COMMANDS.items()]
    return "\n".join(
        [
            *lines,
            f"{QUOTES:{width}}begins a message or TEXT of several lines, and ends it",
            f"{'Ctrl-C':{width}}stops an answer, or the program if there is none",
            "A blank before a slash sends the line as a message.",
        ]
    )
