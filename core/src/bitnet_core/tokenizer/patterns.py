"""Which regular expressions and replacements of a tokenizer.json are accepted.

The library's engine backtracks without a limit and panics on some expressions, so a file's expressions must be of the
kind that real tokenizers use: classes, alternatives, lookahead, and repetitions that are not nested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bitnet_core.errors import TokenizerError

MAX_PATTERN: Final = 1 << 12  # characters
MAX_PATTERNS: Final = 64
MAX_REPEATED: Final = 1000  # in {m,n}
MAX_GROWTH: Final = 128  # characters that normalizing may make of one
MAX_PREFIX: Final = 64  # characters of a Prepend
_MAX_DEPTH: Final = 16

_GROWTH: Final = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3}
"""Most characters that come of one, by the tables of Unicode."""

_ITEM: Final = re.compile(
    r"(?P<open>\((?:\?(?:[ims]*:|[=!]))?(?!\?))|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<atom>\[\^?\]?(?:[^\[\]\\]|\\.)*\]|\\[pP]\{\^?[A-Za-z_ ]+\}|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}"
    r"|\\[sSdDwWrntbBAzZ]|\\[^A-Za-z0-9]|[^\\()\[\]|*+?{}])"
    r"|(?P<repeat>[*+?]|\{\d{1,4}(?:,\d{0,4})?\})[?+]?",
    re.DOTALL,
)


def check_pattern(pattern: str) -> None:
    """TokenizerError if the expression is not of the kind described above."""
    if len(pattern) > MAX_PATTERN:
        raise _refused(pattern, f"it has {len(pattern)} characters; at most {MAX_PATTERN} are accepted")
    nested = [False]  # per open group: whether something in it repeats without end
    closed = False  # whether the item before is a group with such a repetition
    repeatable = False  # whether there is an item before that can be repeated
    position = 0
    while position < len(pattern):
        item = _ITEM.match(pattern, position)
        if item is None:
            raise _refused(pattern, f"{pattern[position : position + 12]!r} is not accepted in it")
        position = item.end()
        if item["open"]:
            nested.append(False)
        elif item["close"]:
            if len(nested) == 1:
                raise _refused(pattern, "a parenthesis is closed that was not opened")
            closed = nested.pop()
            nested[-1] |= closed
        elif item["repeat"]:
            if not repeatable or not _bounded(item["repeat"]):
                raise _refused(pattern, f"the repetition {item['repeat']} is not accepted where it stands")
            if closed and item["repeat"] != "?":
                raise _refused(pattern, "a repetition stands inside another one")
            nested[-1] |= item["repeat"][0] in "*+" or "," in item["repeat"]
        if len(nested) > _MAX_DEPTH:
            raise _refused(pattern, "its groups are too deep")
        repeatable = bool(item["atom"] or item["close"])
        closed = closed and bool(item["close"])
    if len(nested) > 1:
        raise _refused(pattern, "a parenthesis is not closed")


def check_pipeline(parts: Mapping[str, Any]) -> None:
    """Checks every expression, and how much the normalizers may make of a text. parts: normalizer, pre_tokenizer and
    decoder of a tokenizer.json."""
    found = {name: list(steps(part)) for name, part in parts.items()}
    if sum(map(len, found.values())) > MAX_PATTERNS:
        raise TokenizerError(f"tokenizer.json has more than {MAX_PATTERNS} steps of normalizing, cutting and decoding")
    for step in [step for part in found.values() for step in part]:
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
            check_pattern(pattern["Regex"])
    growth = 1.0
    for step in found["normalizer"]:
        growth *= _growth(step)
    if growth > MAX_GROWTH:
        raise TokenizerError(
            f"the normalizers of tokenizer.json may make {growth:.0f} characters of one; {MAX_GROWTH} are accepted"
        )


def steps(node: Any) -> Iterator[Mapping[str, Any]]:
    """A part of the pipeline and everything that it consists of."""
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield part
            for name in ("decoders", "pretokenizers", "normalizers", "processors"):
                nested = part.get(name)
                pending.extend(nested if isinstance(nested, list) else [])


def _growth(step: Mapping[str, Any]) -> float:
    kind, pattern = step.get("type"), step.get("pattern")
    if kind == "Prepend" and len(str(step.get("prepend"))) > MAX_PREFIX:
        raise TokenizerError(f"tokenizer.json puts more than {MAX_PREFIX} characters in front of every text")
    if kind != "Replace":
        return _GROWTH.get(str(kind), 1)
    text = pattern.get("String") if isinstance(pattern, dict) else None
    made = len(str(step.get("content")))
    # an expression may match nothing at all, between all characters
    return max(1, made / max(1, len(text))) if isinstance(text, str) else 1 + made


def _bounded(repeat: str) -> bool:
    return all(int(count) <= MAX_REPEATED for count in re.findall(r"\d+", repeat))


def _refused(pattern: str, why: str) -> TokenizerError:
    shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
    return TokenizerError(f"the regular expression {shown!r} of tokenizer.json is refused: {why}")
