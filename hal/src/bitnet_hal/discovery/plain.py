"""Conversion of DeviceInfo to plain data for other processes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from bitnet_hal.device import DeviceInfo, DeviceType, TransferMode


def to_plain(info: DeviceInfo) -> dict[str, Any]:
    """Return a description as values that JSON can represent."""
    plain = {field.name: getattr(info, field.name) for field in fields(info)}
    plain["kernels"] = sorted(info.kernels)
    plain["features"] = sorted(info.features)
    plain["peers"] = sorted(info.peers)
    plain["type"] = info.type.value
    plain["transfer"] = info.transfer.value
    plain["batch_invariant_rows"] = dict(info.batch_invariant_rows)
    plain["extra"] = dict(info.extra)
    return plain


def from_plain(plain: Mapping[str, Any]) -> DeviceInfo:
    """Return the DeviceInfo that `to_plain` converted."""
    converted = {
        "kernels": frozenset(plain["kernels"]),
        "features": frozenset(plain["features"]),
        "peers": frozenset(plain["peers"]),
        "type": DeviceType(plain["type"]),
        "transfer": TransferMode(plain["transfer"]),
        "max_grid": tuple(plain["max_grid"]),
    }
    return DeviceInfo(**{**plain, **converted})
