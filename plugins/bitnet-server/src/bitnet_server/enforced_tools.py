"""Parameters of tools that the compiler of grammars can enforce: of a tool that is not strict, keywords, properties or
the whole schema are dropped if it cannot."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bitnet_core.schema_keywords import costly, relaxed
from bitnet_core.structured import Grammar, Grammars
from bitnet_hal.errors import UsageError

from bitnet_server.errors import ApiError
from bitnet_server.tools import ANY_OBJECT, CallableTool, ToolChoice

log = logging.getLogger(__name__)

_EXAMINED: Final = 32
"""Most properties of a request's tools that are found to be faulty one by one: each takes a dozen compilations."""

_ENFORCED: Final = 1 << 19
"""Most characters of a request's schemas of tools that are enforced: examining them takes a second for each MB."""

_LOGGED: Final = 1000
"""Most characters of a log line about tools."""


def enforceable(choice: ToolChoice, grammars: Grammars) -> ToolChoice:
    """Return the choice with parameters that the compiler of grammars supports: of a tool that is not strict the
    keywords that it lacks are dropped, and the rest is enforced. Raises ApiError 400 that names a strict tool."""
    notes: list[str] = []
    small = _without_largest(choice, notes)
    if (
        not notes
        and not any(costly(tool.schema) for tool in choice.tools)
        and _problem(choice.grammar, grammars) is None
    ):
        return choice
    tools = tuple(_supported(tool, grammars, notes) for tool in small.tools)
    made = _within_limits(replace(small, tools=tools), grammars, notes)
    log.warning("not enforced: %s", "; ".join(notes)[:_LOGGED])
    return replace(made, relaxed=tuple(notes))


def _problem(make: Callable[[], Grammar | None], grammars: Grammars) -> str | None:
    """Return the reason for which the grammar that `make` builds is refused."""
    try:
        grammar = make()
        if grammar is not None:
            grammars.constraint(grammar)
    except UsageError as exc:
        return str(exc)
    return None


def _supported(tool: CallableTool, grammars: Grammars, notes: list[str]) -> CallableTool:
    """Return a tool with parameters that can be enforced; notes names the keywords that were dropped."""
    where = f"tools[{tool.index}] ({tool.function.name})"
    reason = _tool_problem(tool, grammars)
    if reason is None:
        return tool
    schema, dropped = relaxed(tool.schema)
    if tool.function.strict:
        keywords = f" (keywords: {', '.join(dropped)})" if dropped else ""
        raise ApiError(
            400, f"{where} is strict, but its parameters cannot be enforced{keywords}: {reason}", param="tools"
        )
    if dropped:
        notes.append(f"{where}: {', '.join(dropped)}")
    tool = replace(tool, schema=_without_faults(tool, schema, grammars, notes, where))
    if _tool_problem(tool, grammars) is None:
        return tool
    notes.append(f"{where}: all parameters")
    return replace(tool, schema=ANY_OBJECT)


def _without_faults(
    tool: CallableTool, schema: Mapping[str, Any], grammars: Grammars, notes: list[str], where: str
) -> Mapping[str, Any]:
    """Return the schema with anything for those of its properties that cannot be enforced."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return schema
    if _tool_problem(replace(tool, schema=schema), grammars) is None:
        return schema

    def fits(names: Sequence[str]) -> bool:
        some = {name: properties[name] for name in names}
        part = {**schema, "properties": some, "required": [], "allOf": [], "anyOf": [{}]}
        return _tool_problem(replace(tool, schema=part), grammars) is None

    faulty = _faulty(list(properties), fits, _EXAMINED - len(notes))
    notes += [f"{where}: {name}" for name in faulty]
    return {**schema, "properties": {**properties, **dict.fromkeys(faulty, True)}}


def _faulty(names: list[str], fits: Callable[[Sequence[str]], bool], most: int) -> list[str]:
    """Return the names that do not fit, by halving; after `most` of them also those that are not examined yet."""
    found: list[str] = []
    left = [names]
    while left:
        group = left.pop()
        if len(found) < most and fits(group):
            continue
        if len(group) == 1 or len(found) >= most:
            found += group
        else:
            left += [group[len(group) // 2 :], group[: len(group) // 2]]
    return found


def _without_largest(choice: ToolChoice, notes: list[str]) -> ToolChoice:
    """Return the choice with any object for the largest parameters of tools that are not strict, so that what is left
    can be examined. Raises ApiError 400 if the strict ones are too large."""
    sizes = {tool.index: len(json.dumps(tool.schema)) for tool in choice.tools}
    total = sum(sizes.values())
    tools = list(choice.tools)
    for at in sorted(range(len(tools)), key=lambda at: sizes[tools[at].index], reverse=True):
        tool = tools[at]
        if total > _ENFORCED and not tool.function.strict:
            total -= sizes[tool.index]
            tools[at] = replace(tool, schema=ANY_OBJECT)
            notes.append(f"tools[{tool.index}] ({tool.function.name}): all parameters")
    if total > _ENFORCED:
        raise ApiError(400, f"the parameters of strict tools have more than {_ENFORCED} characters", param="tools")
    return replace(choice, tools=tuple(tools)) if notes else choice


def _within_limits(choice: ToolChoice, grammars: Grammars, notes: list[str]) -> ToolChoice:
    """Return the choice with any object for the largest parameters of tools that are not strict, as many as the limits
    of one grammar ask for. Raises ApiError 400 if that is not enough."""
    free = [tool for tool in choice.tools if not tool.function.strict]
    free.sort(key=lambda tool: len(json.dumps(tool.schema)), reverse=True)
    count, made = 0, choice
    while (reason := _problem(made.grammar, grammars)) is not None:
        if count == len(free):
            raise ApiError(400, f"the tools together: {reason}", param="tools")
        count = min(len(free), max(1, 2 * count))
        loose = {tool.index for tool in free[:count]}
        tools = (replace(tool, schema=ANY_OBJECT) if tool.index in loose else tool for tool in choice.tools)
        made = replace(choice, tools=tuple(tools))
    notes += [f"tools[{tool.index}] ({tool.function.name}): all parameters" for tool in free[:count]]
    return made


def _tool_problem(tool: CallableTool, grammars: Grammars) -> str | None:
    if reason := costly(tool.schema):
        return reason
    return _problem(lambda: Grammar("json", json.dumps(tool.call()), ("", tool.head)), grammars)
