"""Close the objects of a JSON schema to properties that the schema does not name.

JSON Schema leaves an object open unless it says `additionalProperties: false`. With an open schema a model may invent
properties without end, so an object that names some is closed here, unless it states a rule for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

_STATED: Final = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
_UNTOLD: Final = frozenset({"if", "then", "else", "not", "dependentSchemas", "$dynamicRef", "$recursiveRef", "$anchor"})
"""Keywords that may allow further properties and are not analysed here: such an object stays open."""
_PARTS: Final = ("allOf", "anyOf", "oneOf")
"""Keywords with lists of schemas of the same value."""
_VALUES: Final = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_DEFINITIONS: Final = ("$defs", "definitions")


def closed(schema: Any) -> Any:
    """Return a copy of the schema in which objects with `properties` allow no others.

    The properties of one object may come from allOf, anyOf, oneOf, $ref and the schema around them: it is closed to all
    names but theirs, while the parts stay open, so that the schema can be satisfied. Alternatives with nothing beside
    them are closed one by one. An object stays open if one of its parts states additionalProperties, patternProperties
    or unevaluatedProperties, or requires more properties than are named.
    """
    return _Closing(schema).whole()


class _Closing:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._opened: dict[str, str] = {}  # $ref to a definition -> $ref to its open copy
        self._waiting: list[str] = []

    def whole(self) -> Any:
        """Return the closed root, with open copies of the definitions that are parts of other objects."""
        made = self._closed(self._root)
        while self._waiting:
            ref = self._waiting.pop()
            kind, name = self._opened[ref][2:].split("/", 1)
            made[kind][_unescaped(name)] = self._open(self._target(ref))
        return made

    def _closed(self, schema: Any) -> Any:
        """Close a schema that describes a whole value."""
        if not isinstance(schema, Mapping):
            return schema
        joined = [key for key in (*_PARTS, "$ref", "properties") if key in schema]
        if joined in (["$ref"], ["anyOf"], ["oneOf"]):
            return self._copy(schema, self._closed)
        copy = self._copy(schema, self._open)
        parts = self._parts(schema)
        if parts is None or not any("properties" in part for part in parts):
            return copy
        names = dict.fromkeys(name for part in parts for name in _names(part))
        if max(_count(part.get("minProperties")) for part in parts) > len(names):
            return copy
        own = copy.get("properties", {})
        if isinstance(own, Mapping):
            copy["properties"] = {**own, **{name: True for name in names if name not in own}}
            copy["additionalProperties"] = False
        return copy

    def _open(self, schema: Any) -> Any:
        """Copy a schema that is a part of a larger one."""
        return self._copy(schema, self._open) if isinstance(schema, Mapping) else schema

    def _copy(self, schema: Mapping[str, Any], part: Callable[[Any], Any]) -> dict[str, Any]:
        """Copy a schema: close the schemas of other values within it, and apply `part` to those of the same value."""
        copy = dict(schema)
        for key in _VALUES:
            if isinstance(inner := schema.get(key), list):
                copy[key] = [self._closed(one) for one in inner]
            elif key in schema:
                copy[key] = self._closed(inner)
        for key in _NAMED:
            if isinstance(inner := schema.get(key), Mapping):
                copy[key] = {name: self._closed(one) for name, one in inner.items()}
        for key in _PARTS:
            if isinstance(inner := schema.get(key), list):
                copy[key] = [part(one) for one in inner]
        if part == self._open and isinstance(ref := schema.get("$ref"), str):
            copy["$ref"] = self._open_ref(ref)
        return copy

    def _open_ref(self, ref: str) -> str:
        """Return the $ref of a definition's open copy, which is made later; `ref` itself if there is no such
        definition."""
        if ref not in self._opened:
            if self._target(ref) is None:
                return ref
            taken = self._root[ref.split("/")[1]]
            copy = ref + ".open"
            while _unescaped(copy.split("/", 2)[2]) in taken:
                copy += "."
            self._opened[ref] = copy
            self._waiting.append(ref)
        return self._opened[ref]

    def _target(self, ref: Any) -> Mapping[str, Any] | None:
        """Return the definition of the root that a $ref names."""
        parts = ref.split("/") if isinstance(ref, str) else []
        if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFINITIONS:
            return None
        definitions = self._root.get(parts[1])
        found = definitions.get(_unescaped(parts[2])) if isinstance(definitions, Mapping) else None
        return found if isinstance(found, Mapping) else None

    def _parts(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        """Return all schemas of the same value, this one first; None if some are not known, or one has a rule for other
        properties."""
        found: list[Mapping[str, Any]] = []
        refs, waiting = set(), [schema]
        while waiting:
            part = waiting.pop(0)
            if not _STATED.isdisjoint(part) or not _UNTOLD.isdisjoint(part):
                return None
            found.append(part)
            for key in _PARTS:
                inner = part.get(key, ())
                waiting += [one for one in inner if isinstance(one, Mapping)] if isinstance(inner, list) else []
            if "$ref" in part:
                target = self._target(part["$ref"])
                if target is None:
                    return None
                if part["$ref"] not in refs:
                    refs.add(part["$ref"])
                    waiting.append(target)
        return found


def _names(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of properties that a schema mentions."""
    properties, required = schema.get("properties"), schema.get("required")
    named = list(properties) if isinstance(properties, Mapping) else []
    return named + ([name for name in required if isinstance(name, str)] if isinstance(required, list) else [])


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _unescaped(name: str) -> str:
    """Decode a part of a JSON pointer in a URI."""
    return unquote(name).replace("~1", "/").replace("~0", "~")
