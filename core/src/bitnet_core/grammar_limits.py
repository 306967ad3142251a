"""Limits on grammars, checked before llguidance reads them.

It follows rules and references by recursion on the stack of its thread, and the time that it takes for an expression
is quadratic in the repetitions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from bitnet_hal.errors import UsageError

from bitnet_core.json_limits import nesting

_RULES: Final = 500
"""Maximum rules of a grammar. A chain of 500 was compiled on a stack of 2 MiB, one of 3000 overflows 8 MiB."""

_LEVELS: Final = 1500
"""Maximum levels of all referenced schemas together. A chain of 2000 was compiled on a stack of 2 MiB."""

_REPETITIONS: Final = 5000
"""Maximum repetitions of a regular expression: 5000 take half a second."""

_REFERENCES: Final = 25
"""Maximum references of the schemas in a grammar: each may be followed through all levels of a schema."""

_DIVISOR: Final = 50_000
"""Largest common multiple of the divisors of a schema, in units of their last decimal: the time grows with it. 50,000
takes a second, 10,000,000 holds a thread for minutes."""

_PATTERNS: Final = 8
"""Maximum patterns that one text has to match: the time doubles with each, and llguidance rejects most sets of 8."""

_IN_PLACE: Final = 100
"""Maximum parts of a schema that refer to one another in a chain without a value between them."""

_SCHEMA: Final = re.compile(r"%json\s*")
_DECODER: Final = json.JSONDecoder()

_RULE: Final = re.compile(r"^[ \t]*[?!]*[A-Za-z_][^:]*:", re.MULTILINE)
_REFERENCE: Final = re.compile(r'"(\$|\\u0024)(r|\\u0072)(e|\\u0065)(f|\\u0066)"\s*:')
_REPETITION: Final = re.compile(r"[?*+]|(?<!\\x)\{\d+(,\d*)?\}")


def lark_fault(text: str) -> str:
    """Return the limit that a grammar in Lark's syntax exceeds, else ""."""
    return (
        _excess(text, _RULE, "rules", _RULES)
        or _excess(text, _REFERENCE, "references", _REFERENCES)
        or regex_fault(text)
    )


def schemas_in(text: str) -> Iterator[Any]:
    """Yield the JSON schemas in a grammar in Lark's syntax. Raises UsageError for one that is not JSON."""
    at = 0
    while found := _SCHEMA.search(text, at):
        try:
            schema, at = _DECODER.raw_decode(text, found.end())
        except (ValueError, RecursionError) as exc:
            raise UsageError("the grammar cannot be used: no JSON schema follows %json") from exc
        yield schema


def regex_fault(text: str) -> str:
    """Return the limit that a regular expression exceeds, else ""."""
    return _excess(text, _REPETITION, "repetitions", _REPETITIONS)


def _excess(text: str, part: re.Pattern[str], name: str, most: int) -> str:
    count = sum(1 for _ in part.finditer(text))
    return f"it has {count} {name}; at most {most} can be enforced" if count > most else ""


def references_fault(schema: Any) -> str:
    """Return the limit that the references of a JSON schema exceed, else "". schema: of bounded depth and size."""
    found = {part["$ref"] for part in _parts(schema) if isinstance(part.get("$ref"), str)}
    levels = sum(nesting(_target(schema, reference)) + 1 for reference in found)
    return f"its references lead {levels} levels deep; at most {_LEVELS} can be enforced" if levels > _LEVELS else ""


def circular_fault(schema: Any) -> str:
    """Return a reference of a JSON schema that leads to itself without a value between, else ""."""
    graph: dict[str, set[str]] = {}
    left = {ref for part in _parts(schema) for ref in _references_in_place(part)}
    while left:
        reference = left.pop()
        target = schema if reference == "#" else _target(schema, reference)
        graph[reference] = _references_in_place(target)
        left |= graph[reference].difference(graph)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        return f"the reference {exc.args[1][0][:80]!r} leads to itself"
    return ""


def divisor_fault(divisors: Iterable[Any]) -> str:
    """Return a fault if the common multiple of some values of multipleOf is too large, else "". They may be of any
    type; as it is not known which of them a value has to meet together, all are taken to be so."""
    numbers = [_digits(value) for value in divisors if isinstance(value, int | float) and value]
    unit = min((exponent for _, exponent in numbers if exponent < 0), default=0)
    common = 1
    for digits, exponent in numbers:
        common = math.lcm(common, digits * 10 ** min(exponent - unit, len(str(_DIVISOR))))
        if common > _DIVISOR:
            return f"multipleOf leads to more than {_DIVISOR} remainders"
    return ""


def _digits(value: float) -> tuple[int, int]:
    """Return the first 28 digits of a number without zeros at its end, as an integer, and its power of ten."""
    _, digits, exponent = Decimal(value if isinstance(value, int) else str(value)).normalize().as_tuple()
    return (int("".join(map(str, digits))), exponent) if isinstance(exponent, int) else (1, 0)  # it is infinite


def patterns_fault(schema: Any) -> str:
    """Return a fault if one text has to match too many patterns of a JSON schema, else ""."""
    counts: dict[int, int] = {}
    if any(_count_patterns(schema, part, counts, 0) > _PATTERNS for part in _parts(schema) if "allOf" in part):
        return f"an allOf leads to more than {_PATTERNS} patterns and formats"
    return ""


def _count_patterns(schema: Any, part: Any, counts: dict[int, int], level: int) -> int:
    """Return the largest number of patterns and formats that a value of a part of a schema has to match. counts: those
    of parts by their id; 0 for one that is being counted. level: number of parts that led to this one."""
    if not isinstance(part, Mapping):
        return 0
    if level > _IN_PLACE:
        return _PATTERNS + 1
    if id(part) not in counts:
        counts[id(part)] = 0

        def of(key: str) -> list[int]:
            parts = part.get(key)
            listed = parts if isinstance(parts, list | tuple) else []
            return [_count_patterns(schema, one, counts, level + 1) for one in listed]

        count = sum(isinstance(part.get(key), str) for key in ("pattern", "format")) + sum(of("allOf"))
        count += sum(max(of(key), default=0) for key in ("anyOf", "oneOf"))
        if isinstance(reference := part.get("$ref"), str):
            count += _count_patterns(schema, _target(schema, reference), counts, level + 1)
        counts[id(part)] = count
    return counts[id(part)]


def _references_in_place(schema: Any) -> set[str]:
    """Return the references of a schema that describe the same value as the schema itself."""
    found: set[str] = set()
    left = [schema]
    while left:
        part = left.pop()
        if not isinstance(part, Mapping):
            continue
        if isinstance(reference := part.get("$ref"), str):
            found.add(reference)
        if isinstance(parts := part.get("allOf"), list | tuple):
            left.extend(parts)
    return found


def _parts(schema: Any) -> Iterator[Any]:
    """Yield all objects within a JSON value."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            yield part
            left.extend(part.values())
        elif isinstance(part, list | tuple):
            left.extend(part)


def _target(schema: Any, reference: str) -> Any:
    """Return the part of a schema that a reference points to; None for the whole, whose depth is bounded."""
    target = schema if reference.startswith("#/") else None
    for name in reference.split("/")[1:]:
        if isinstance(target, list) and name.isdecimal() and len(name) < 10:
            target = target[int(name)] if int(name) < len(target) else None
        else:
            target = target.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
    return target
