"""Objects of JSON schemas, closed: the documents that a grammar then accepts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import bitnet_core
import pytest
from bitnet_core.schemas import closed
from bitnet_core.structured import json_grammar

Takes = Callable[[Any, Any], bool]
INTEGER = {"type": "integer"}
A = {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}
B = {"type": "object", "properties": {"b": INTEGER}, "required": ["b"]}
CONST = {"type": "object", "properties": {"kind": {"const": "x"}, "a": INTEGER}, "required": ["kind"]}


@pytest.fixture(scope="module")
def takes() -> Iterator[Takes]:
    """takes(schema, document) returns whether the grammar of the schema accepts the whole document."""
    pytest.importorskip("llguidance")
    with bitnet_core.load(None, "numpy") as model:

        def allowed(schema: Any, document: Any) -> bool:
            constraint = model.grammars.constraint(json_grammar(schema))
            tokens = model.tokenizer.encode(json.dumps(document), add_bos=False)
            matcher = constraint._matcher
            return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

        yield allowed


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (A, {"a": 1}, {"a": 1, "x": 1}),
        ({"type": "array", "items": A}, [{"a": 1}], [{"a": 1, "x": 1}]),
        ({"type": "array", "prefixItems": [A]}, [{"a": 1}], [{"a": 1, "x": 1}]),
        ({"type": "object", "properties": {"o": A}}, {"o": {"a": 1}}, {"o": {"a": 1, "x": 1}}),
        ({"$defs": {"A": A}, "$ref": "#/$defs/A"}, {"a": 1}, {"a": 1, "x": 1}),
        ({"definitions": {"a/b": A}, "items": {"$ref": "#/definitions/a~1b"}}, [{"a": 1}], [{"a": 1, "x": 1}]),
        ({"anyOf": [A, B]}, {"b": 1}, {"b": 1, "a": 1}),
        ({"anyOf": [A, {"type": "null"}]}, None, {"a": 1, "x": 1}),
        ({"allOf": [A, B]}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "x": 3}),
        ({"allOf": [A, B]}, {"a": 1, "b": 2}, {"a": 1}),
        ({"allOf": [A, {"allOf": [B]}]}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "x": 3}),
        ({"$defs": {"A": A}, "allOf": [{"$ref": "#/$defs/A"}, B]}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "x": 3}),
        ({"$defs": {"A": A}, "$ref": "#/$defs/A", **B}, {"a": 2, "b": 1}, {"a": 2, "b": 1, "x": 3}),
        (
            {"$defs": {"A": A}, "properties": {"p": {"$ref": "#/$defs/A"}, "q": {"allOf": [{"$ref": "#/$defs/A"}, B]}}},
            {"p": {"a": 1}, "q": {"a": 1, "b": 1}},
            {"p": {"a": 1, "b": 1}},
        ),
        (CONST | {"anyOf": [{"required": ["a"]}, B]}, {"kind": "x", "a": 1, "b": 1}, {"kind": "x", "a": 1, "c": 1}),
        ({"type": "object", "properties": {}}, {}, {"x": 1}),
        ({"type": "object", "properties": {"a": INTEGER}, "required": ["a", "z"]}, {"a": 1, "z": [1]}, {"a": 1}),
        (
            {"$defs": {"T": {"properties": {"t": {"$ref": "#/$defs/T"}}}}, "$ref": "#/$defs/T"},
            {"t": {"t": {}}},
            {"t": {"x": {}}},
        ),
    ],
)
def test_objects_allow_the_properties_that_are_named(takes: Takes, schema: Any, good: Any, bad: Any) -> None:
    assert takes(schema, good)
    assert not takes(schema, bad)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        A | {"additionalProperties": True},
        A | {"additionalProperties": INTEGER},
        A | {"patternProperties": {"^x$": INTEGER}, "additionalProperties": INTEGER},
        {"allOf": [A, B | {"additionalProperties": INTEGER}]},
    ],
)
def test_an_object_that_says_otherwise_stays_open(takes: Takes, schema: Any) -> None:
    assert takes(schema, {"a": 1, "b": 1, "x": 1})


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"enum": [A]},
        {"const": A},
        {"default": A},
        {"not": A},
        A | {"unevaluatedProperties": False},
        A | {"if": B, "then": B},
        A | {"minProperties": 3},
        {"properties": {"a": INTEGER}, "$ref": "https://example.org/schema.json"},
        {"allOf": 1, "anyOf": "x", "items": 1, "properties": [], "required": 3, "$ref": 4, "$defs": 5},
    ],
)
def test_nothing_else_is_touched(schema: Any) -> None:
    assert closed(schema) == schema


def test_definitions_that_refer_to_each_other_many_times_end_soon() -> None:
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2 + [A]} for n in range(200)}
    made = closed({"$defs": definitions | {"d200": B}, "$ref": "#/$defs/d0"})
    assert len(json.dumps(made)) < 200_000
    assert closed({"$defs": {"A": {"$ref": "#/$defs/A", "properties": {"x": {}}}}, "$ref": "#/$defs/A"})
