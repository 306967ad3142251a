"""Validation of a tokenizer.json's regular expressions.

The library's engine backtracks, and panics if that takes too long, so an expression must be of the kind that real
tokenizers use: classes, alternatives, lookahead and repetitions without nesting, with few ways to match the same text.
At one position of a text an accepted expression takes a number of steps proportional to the rest of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from bitnet_core.errors import TokenizerError

MAX_PATTERN: Final = 1 << 12  # characters
MAX_REPEATED: Final = 1000  # in {m,n}
MAX_WAYS: Final = 256
_MAX_DEPTH: Final = 16

_ITEM: Final = re.compile(
    r"(?P<open>\((?:\?(?:[ims]*:|[=!]))?(?!\?))|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<atom>\[\^?\]?(?:[^\[\]\\]|\\.)*(?:&&\[\^\\p\{[A-Za-z_ ]+\}\])?\]"
    r"|\\[pP]\{\^?[A-Za-z_ ]+\}|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}"
    r"|\\[sSdDwWrntbBAzZ]|\\[^A-Za-z0-9]|[^\\()\[\]|*+?{}])"
    r"|(?P<repeat>[*+?]|\{\d{1,4}(?:,\d{0,4})?\})[?+]?",
    re.DOTALL,
)


@dataclass(slots=True)
class _Branch:
    """The cost of matching a part of an expression.

    ways: alternatives for one text, apart from unbounded repetitions. last: unbounded repetitions at the end of the
    part. retried: unbounded repetitions followed by something that may fail, so that all their lengths are tried.
    repeats: whether the part has a choice of lengths.
    """

    ways: int = 1
    last: int = 0
    retried: int = 0
    repeats: bool = False


@dataclass(slots=True)
class _Group:
    """An open group: its finished alternatives, the current one, and the item at its end, to which a repetition may
    apply."""

    done: list[_Branch] = field(default_factory=list)
    branch: _Branch = field(default_factory=_Branch)
    item: _Branch | None = None

    def settle(self, required: bool = True) -> None:
        """Append the complete item to the alternative. required: True if the item may fail to match."""
        item, branch = self.item, self.branch
        if item is None:
            return
        if required:
            branch.retried, branch.last = branch.retried + branch.last, 0
        branch.retried += item.retried
        branch.last += item.last
        branch.ways *= item.ways
        branch.repeats |= item.repeats
        self.item = None

    def end_branch(self) -> None:
        """Finish an alternative."""
        self.settle()
        self.done.append(self.branch)
        self.branch = _Branch()

    def closed(self) -> _Branch:
        """Return the whole group as one part."""
        self.end_branch()
        ways = sum(part.ways for part in self.done)
        last, retried = max(part.last for part in self.done), max(part.retried for part in self.done)
        return _Branch(ways, last, retried, any(part.repeats for part in self.done))


def check_pattern(pattern: str) -> None:
    """Raise TokenizerError unless the expression is of the kind described above."""
    if len(pattern) > MAX_PATTERN:
        raise _refused(pattern, f"it has {len(pattern)} characters; at most {MAX_PATTERN} are accepted")
    groups = [_Group()]
    position = 0
    while position < len(pattern):
        item = _ITEM.match(pattern, position)
        if item is None:
            raise _refused(pattern, f"{pattern[position : position + 12]!r} is not supported in it")
        position = item.end()
        if problem := _taken(groups, item):
            raise _refused(pattern, problem)
    if len(groups) > 1:
        raise _refused(pattern, "a parenthesis is not closed")
    if problem := _costly(groups[0].closed()):
        raise _refused(pattern, problem)


def _taken(groups: list[_Group], item: re.Match[str]) -> str:
    """Process one item, and return its fault, "" if there is none."""
    group = groups[-1]
    if item["repeat"]:
        return _repeated(group, item["repeat"])
    group.settle()
    if item["open"]:
        groups.append(_Group())
        return "its groups are nested too deeply" if len(groups) > _MAX_DEPTH else ""
    if item["close"]:
        if len(groups) == 1:
            return "a parenthesis is closed but was not opened"
        part = groups.pop().closed()
        groups[-1].item = part
        return _costly(part)
    if item["bar"]:
        group.end_branch()
    else:
        group.item = _Branch()
    return ""


def _repeated(group: _Group, repeat: str) -> str:
    """Apply a repetition to the last item of a group, and return the fault, "" if there is none."""
    least, most = _counts(repeat)
    item = group.item
    if item is None or max(least, most or 0) > MAX_REPEATED:
        return f"the repetition {repeat} is not allowed in this place"
    if repeat != "?" and (item.repeats or (item.ways > 1 and most != least)):
        return "a repetition stands inside another one, or repeats a choice"
    if most is None:
        item.last = 1
    else:
        item.ways = min(item.ways**most, MAX_WAYS + 1) + max(most - least, 0)
    item.repeats |= most is None or (repeat != "?" and most != least)
    group.settle(required=least > 0)
    return _costly(group.branch)


def _counts(repeat: str) -> tuple[int, int | None]:
    """Return the minimum and maximum of a repetition; None is unbounded."""
    if repeat in "*+?":
        return int(repeat == "+"), 1 if repeat == "?" else None
    least, comma, most = repeat.strip("{}").partition(",")
    return int(least), int(most) if most else None if comma else int(least)


def _costly(part: _Branch) -> str:
    """Return why matching the part could take too long, "" if it cannot."""
    if part.ways > MAX_WAYS:
        return f"there are more than {MAX_WAYS} ways for it to match the same text"
    if part.retried > 1:
        return "two unbounded repetitions come before something that may fail"
    return ""


def _refused(pattern: str, why: str) -> TokenizerError:
    shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
    return TokenizerError(f"the regular expression {shown!r} of tokenizer.json is rejected: {why}")
