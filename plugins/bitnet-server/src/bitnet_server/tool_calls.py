"""Tool calls within the text of an answer: an incremental parser."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bitnet_server.tools import CLOSING, OPENING, ToolChoice


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A part of an answer: text, and the tool_calls of a delta."""

    text: str = ""
    calls: tuple[dict[str, Any], ...] = ()


class Parser:
    """An incremental parser that separates text from tool calls.

    answers: the text may be an answer in a form of its own, which can begin with a brace as calls do.
    """

    def __init__(self, choice: ToolChoice, *, answers: bool = False) -> None:
        self._heads = {tool.head: tool.function.name for tool in choice.tools}
        self._answers = answers
        self._held = ""
        self._count = 0  # calls so far
        self._read = self._start if choice.tools else self._text
        self._tags = bool(choice.tools) and not answers
        self._depth = 0  # open braces and brackets of the arguments
        self._quoted = self._escaped = False
        self._found: list[dict[str, Any]] = []
        self._last = False

    def push(self, text: str, *, last: bool) -> AnswerPart:
        """Parse more of the answer."""
        self._held += text
        self._last = last
        self._found = []
        shown = ""
        while True:
            state, before = self._read, len(self._held)
            shown += state()
            if self._read == state and len(self._held) == before:
                break
        return AnswerPart(shown, tuple(self._found))

    def reason(self, finish: str) -> str:
        """Return the choice's finish_reason."""
        return "tool_calls" if self._count and finish == "stop" else finish

    def _start(self) -> str:
        """Decide if the answer begins with a call, and skip the white space before one."""
        text = self._held.lstrip()
        if not text:
            return self._taken(len(self._held)) if self._last else ""
        if text.startswith("{") or text.startswith(OPENING):
            self._read = self._head
        elif self._last or not OPENING.startswith(text):
            self._read = self._text
        return ""

    def _text(self) -> str:
        """Return text up to a tag, and up to a possible beginning of one."""
        if not self._tags:
            return self._taken(len(self._held))
        at = self._held.find(OPENING)
        if at >= 0:
            self._read = self._head
            return self._taken(at)
        keep = 0 if self._last else _overlap(self._held)
        return self._taken(len(self._held) - keep)

    def _head(self) -> str:
        """Read a call up to its arguments. An unfinished head is not shown: it is not text for a reader."""
        text = self._held.lstrip().removeprefix(OPENING).lstrip()
        head = next((head for head in self._heads if text.startswith(head)), None)
        if head is not None:
            self._held = text[len(head) :]
            self._begin(self._heads[head])
        elif not any(one.startswith(text) for one in self._heads):
            self._read, self._tags = self._text, False
        elif self._last:
            tagged = self._held.lstrip().startswith(OPENING)
            return self._taken(len(self._held)) if self._answers and not tagged else self._dropped()
        return ""

    def _begin(self, name: str) -> None:
        function = {"name": name, "arguments": ""}
        call_id = f"call_{secrets.token_hex(12)}"
        self._found.append({"index": self._count, "id": call_id, "type": "function", "function": function})
        self._count += 1
        self._read = self._arguments

    def _arguments(self) -> str:
        """Read arguments up to the brace that closes them."""
        end = next((at + 1 for at, char in enumerate(self._held) if self._closes(char)), len(self._held))
        if text := self._taken(end):
            self._found.append({"index": self._count - 1, "function": {"arguments": text}})
        if text and self._depth == 0:
            self._read = self._tail
        return ""

    def _closes(self, char: str) -> bool:
        """Read a character of JSON; returns True at the end of the value."""
        if self._quoted:
            self._quoted = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
            return False
        self._quoted = char == '"'
        self._depth += (char in "{[") - (char in "}]")
        return self._depth == 0 and char in "}]"

    def _tail(self) -> str:
        """Drop the end of a call, up to the next one."""
        text = self._held.lstrip("} \n")
        if text.startswith(CLOSING):
            text = text.removeprefix(CLOSING).lstrip()
        if self._last or not CLOSING.startswith(text):
            self._read = self._head if text.startswith(("{", OPENING)) else self._tail
        self._held = "" if self._last and self._read == self._tail else text
        return ""

    def _dropped(self) -> str:
        self._held = ""
        return ""

    def _taken(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def _overlap(text: str) -> int:
    """Return the length of the longest end of a text that begins a tag."""
    return next(
        (size for size in range(min(len(text), len(OPENING) - 1), 0, -1) if OPENING.startswith(text[-size:])), 0
    )


def to_tool_calls(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tool_calls of a message from those of its deltas."""
    made: list[dict[str, Any]] = []
    for call in calls:
        if "id" in call:
            made.append({"id": call["id"], "type": "function", "function": dict(call["function"])})
        else:
            made[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return made
