"""The shapes of synthetic models, by name, from synthetic_shapes.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitnet_hal.driver.toml_tables import table

from bitnet_core.model.config import DeltaNet, Experts, ModelConfig, Pooling, Windows

_PARTS: dict[str, Any] = {"delta": DeltaNet, "experts": Experts, "pooling": Pooling}


def _fields(name: str, shapes: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of a shape and of the shapes that it is like."""
    own = dict(shapes[name])
    like = own.pop("like", None)
    return (_fields(like, shapes) if like else {}) | own


def _shapes() -> dict[str, ModelConfig]:
    shapes = table(__file__, "synthetic_shapes.toml")
    found = {}
    for name in shapes:
        fields = _fields(name, shapes)
        for key in fields.keys() & _PARTS.keys():
            fields[key] = _PARTS[key](**fields[key])
        if "windows" in fields:
            fields["windows"] = Windows(fields["windows"]["size"], tuple(fields["windows"]["layers"]))
        found[name] = ModelConfig(**fields)
    return found


SHAPES = _shapes()
