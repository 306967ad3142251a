"""Keywords of JSON schemas that llguidance does not support: those without effect, and those that can be dropped.

A schema without its no-ops allows the same values. A relaxed schema allows more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from bitnet_core.grammar_limits import circular_fault, divisor_fault, patterns_fault, regex_fault

_ONE: Final = (
    "items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties",
    "propertyNames", "not", "if", "then", "else",
)  # fmt: skip
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")

_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
"""The formats that are enforced; JSON Schema calls all others annotations."""

_DIALECT: Final = re.compile(r"https?://json-schema\.org/(draft-0[4-7]|draft/20(19-09|20-12))/schema#?")

_UNSUPPORTED: Final = frozenset(
    {
        "uniqueItems", "contains", "minContains", "maxContains", "if", "then", "else", "not", "propertyNames",
        "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties",
        "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip

_LOOK_AROUND: Final = re.compile(r"\(\?<?[=!]|\\[1-9]")
"""Look-around and references to groups, which llguidance's regular expressions do not support."""

_REPEATED: Final = 256
"""Maximum number of required items: the time of a mask grows with it."""

_OPTIONAL: Final = 400
"""Maximum number of optional properties of an object: llguidance holds about four parser items for each."""

_SECOND: Final = "^[^:]*:[^:]*:[0-5]"
"""Pattern of a time up to its seconds, which are below 60."""

_EXACT: Final = 1 << 53
"""Largest integer that llguidance represents exactly; it aborts the process for those near -2^63."""

_UPPER: Final = ("maximum", "exclusiveMaximum")
"""Upper bounds: llguidance aborts the process if one is -2^63 or less and there is a lower bound."""

_ANY: Final[tuple[Any, ...]] = (True, {})


def without_noops(schema: Any) -> Any:
    """Return the schema without keywords that have no effect; {"not": {}} becomes false."""
    return _mapped(schema, _without_noops)


def without_leap_seconds(schema: Any) -> Any:
    """Return the schema with times limited to seconds below 60, because most parsers of dates reject second 60."""
    return _mapped(schema, _without_leap_seconds)


def with_exact_bounds(schema: Any) -> Any:
    """Return the schema with integers that have 64-bit bounds limited to 2^53: neither llguidance nor most parsers of
    JSON represent others."""
    return _mapped(schema, _with_exact_bounds)


def relaxed(schema: Any) -> tuple[Any, list[str]]:
    """Return the schema without its unsupported keywords, with anyOf for oneOf, and the names of these keywords."""
    dropped: dict[str, None] = {}

    def relax(part: dict[str, Any]) -> dict[str, Any]:
        found = [key for key in part if key in _UNSUPPORTED]
        found += [key for key, value in part.items() if _is_costly(key, value)]
        found += ["minProperties"] if _may_repeat_names(part) else []
        found += [key for key in ("pattern",) if _LOOK_AROUND.search(str(part.get(key, "")))]
        if any(_LOOK_AROUND.search(name) for name in _mapping(part.get("patternProperties"))):
            found.append("patternProperties")
        kept = {key: value for key, value in part.items() if key not in found}
        if "oneOf" in kept:
            found.append("oneOf")
            choice = {"anyOf": kept.pop("oneOf")}
            kept = kept | choice if "anyOf" not in kept else {"allOf": [kept, choice]}
        dropped.update(dict.fromkeys(found))
        return kept

    return _mapped(schema, relax), list(dropped)


def costly(schema: Any) -> str:
    """Return the part of a schema whose masks take too long or too much memory to compute, or that cannot be computed
    or enforced; else ""."""
    found: list[str] = []
    divisors: list[Any] = []

    def look(part: dict[str, Any]) -> dict[str, Any]:
        for key in ("minItems", "minProperties"):
            if _is_costly(key, part.get(key)):
                found.append(f"{key} is {part[key]}; at most {_REPEATED} can be enforced")
        if _may_repeat_names(part):
            found.append("minProperties cannot be enforced for names that the schema does not list: one may repeat")
        found.extend(f"{key} has an integer beyond 2^53" for key in ("const", "enum") if _is_costly(key, part.get(key)))
        found.extend(f"{key} is below -2^53" for key in _UPPER if _is_costly(key, part.get(key)))
        divisors.append(part.get("multipleOf"))
        if isinstance(pattern := part.get("pattern"), str) and (fault := regex_fault(pattern)):
            found.append(f"pattern: {fault}")
        names = set(_mapping(part.get("properties"))).difference(_sequence(part.get("required")))
        if len(names) > _OPTIONAL:
            found.append(f"an object has {len(names)} optional properties; at most {_OPTIONAL} can be enforced")
        return part

    _mapped(schema, look)
    found += filter(None, (divisor_fault(divisors), circular_fault(schema), patterns_fault(schema)))
    return found[0] if found else ""


def _is_costly(key: str, value: Any) -> bool:
    if key in ("const", "enum"):
        return _has_inexact_integer(value)
    if key == "multipleOf":
        return bool(divisor_fault([value]))
    if key in _UPPER:
        return isinstance(value, int | float) and value < -_EXACT
    return key in ("minItems", "minProperties") and isinstance(value, int | float) and value > _REPEATED


def _may_repeat_names(part: Mapping[str, Any]) -> bool:
    """Return whether an object could reach minProperties with a repeated name, which llguidance counts twice."""
    least, more = part.get("minProperties"), part.get("additionalProperties", "properties" not in part)
    if not isinstance(least, int) or (more is False and not part.get("patternProperties")):
        return False
    return least > len(_sequence(part.get("required"))) + 1


def _has_inexact_integer(value: Any) -> bool:
    """Return whether a JSON value is or contains an integer beyond 2^53."""
    if isinstance(value, Mapping):
        return any(map(_has_inexact_integer, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_inexact_integer, value))
    return isinstance(value, int) and abs(value) > _EXACT


def _mapped(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Apply `change` to a copy of every schema within a schema, the inner ones first. Constants stay as they are."""
    if not isinstance(schema, Mapping):
        return schema
    copy = dict(schema)
    for key in _ONE:
        if key in copy and not isinstance(copy[key], list):
            copy[key] = _mapped(copy[key], change)
    for key in _LISTS:
        if isinstance(copy.get(key), list):
            copy[key] = [_mapped(part, change) for part in copy[key]]
    for key in _NAMED:
        if isinstance(copy.get(key), Mapping):
            copy[key] = {name: _mapped(part, change) for name, part in copy[key].items()}
    return change(copy)


def _without_leap_seconds(part: dict[str, Any]) -> Any:
    if part.get("format") not in ("date-time", "time") or "pattern" in part:
        return part
    return {**part, "pattern": _SECOND}


def _with_exact_bounds(part: dict[str, Any]) -> Any:
    low, high = part.get("minimum"), part.get("maximum")
    if part.get("type") != "integer" or not isinstance(low, int | float) or not isinstance(high, int | float):
        return part
    if low > _EXACT or high < -_EXACT:
        return part
    return {**part, "minimum": max(low, -_EXACT), "maximum": min(high, _EXACT)}


def _without_noops(part: dict[str, Any]) -> Any:
    if "not" in part and part["not"] in _ANY:
        return False
    return {key: value for key, value in part.items() if not _is_noop(key, value, part)}


def _is_noop(key: str, value: Any, part: Mapping[str, Any]) -> bool:
    """Return True if a keyword allows every value."""
    if key in ("uniqueItems", "not"):
        return value is False
    if key == "propertyNames":
        return bool(value in (*_ANY, {"type": "string"}))
    if key in ("unevaluatedItems", "unevaluatedProperties"):
        return bool(value in _ANY)
    if key in ("minContains", "maxContains"):
        return "contains" not in part
    if key in ("then", "else"):
        return "if" not in part
    if key == "if":
        return "then" not in part and "else" not in part
    if key in ("dependencies", "dependentRequired", "dependentSchemas"):
        return bool(value == {})
    if key == "format":
        return not isinstance(value, str) or value not in _FORMATS
    return key == "$schema" and not (isinstance(value, str) and _DIALECT.fullmatch(value))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> list[Any]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
