"""llama.cpp's grammars (GBNF), converted to llguidance's dialect of Lark.

Literals become their single characters, because a lexer prefers the longest literal and GBNF does not. The syntax is
that of llama.cpp's grammars/README.md.
"""

from __future__ import annotations

import json
import re
from typing import Final

from bitnet_hal.errors import UsageError

_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)|(?P<defined>[A-Za-z0-9_-]+)\s*::=|(?P<name>[A-Za-z0-9_-]+)
    |"(?P<literal>(?:[^"\\\n]|\\.)*)"|\[(?P<set>(?:[^\]\\]|\\.)*)\]|(?P<repeat>\{\d+(?:,\d*)?\})|(?P<sign>[()|*+?.])""",
    re.VERBOSE,
)
_CHAR: Final = re.compile(r"\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\.|.", re.DOTALL)
_EMPTY: Final = '""'
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


def is_gbnf(text: str) -> bool:
    """Return True for a grammar in llama.cpp's syntax."""
    return "::=" in text


def lark(text: str) -> str:
    """Convert a grammar. Raises UsageError if it has no root, names an unknown rule or is not GBNF."""
    rules: dict[str, list[str]] = {}
    used: dict[str, None] = {}
    position = 0
    body: list[str] | None = None
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or (body is None and match["defined"] is None and match["blank"] is None):
            raise UsageError(f"the grammar is not GBNF: unexpected {text[position : position + 20]!r}")
        position = match.end()
        if match["defined"] is not None:
            body = rules.setdefault(match["defined"], [])
            if body:
                raise UsageError(f"the grammar defines {match['defined'][:40]!r} twice")
        elif body is not None and match["blank"] is None:
            body.append(_term(match))
            if match["name"] is not None:
                used[match["name"]] = None
    if "root" not in rules:
        raise UsageError("the grammar has no rule root")
    if unknown := next((name for name in used if name not in rules), None):
        raise UsageError(f"the grammar has no rule {unknown[:40]!r}")
    ordered = {"root": rules["root"]} | rules
    return "".join(f"{_rule(name)}: {' '.join(body) or _EMPTY}\n" for name, body in ordered.items())


def _rule(name: str) -> str:
    """Return a name that is valid in Lark and differs for different names."""
    if name == "root":
        return "start"
    return "r_" + "".join(char if re.match("[a-z0-9]", char) else f"_{ord(char)}_" for char in name)


def _term(match: re.Match[str]) -> str:
    if match["name"] is not None:
        return _rule(match["name"])
    if match["literal"] is not None:
        chars = [json.dumps(_char(char)) for char in _CHAR.findall(match["literal"])]
        return f"({' '.join(chars)})" if chars else _EMPTY
    if match["set"] is not None:
        return _set(match["set"])
    if match["repeat"] is not None:
        return str(match["repeat"])
    return r"/(.|\n)/" if match["sign"] == "." else str(match["sign"])


def _char(text: str) -> str:
    """Return the character that a character or an escape stands for."""
    if len(text) == 1:
        return text
    if text[1] in "xuU" and len(text) > 2:
        code = int(text[2:], 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise UsageError(f"the grammar holds {text}, which is not a character")
        return chr(code)
    return _ESCAPES.get(text[1], text[1])


def _set(text: str) -> str:
    """Return the regular expression of a set such as [a-z0-9] or [^"]."""
    chars = _CHAR.findall(text.removeprefix("^"))
    parts: list[str] = []
    at = 0
    while at < len(chars):
        first = last = ord(_char(chars[at]))
        if at + 2 < len(chars) and chars[at + 1] == "-":
            last, at = ord(_char(chars[at + 2])), at + 2
        if last < first:
            raise UsageError(f"the grammar holds an empty range in [{text[:40]}]")
        parts.append(f"\\x{{{first:x}}}-\\x{{{last:x}}}")
        at += 1
    if not parts:
        raise UsageError("the grammar holds an empty set []")
    return f"/[{'^' if text.startswith('^') else ''}{''.join(parts)}]/"
