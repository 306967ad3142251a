"""Device requests: one grammar for the command line, the environment and Python.

    auto | cpu | gpu[:card] | <backend>[:index | :card]

`cpu` means any CPU backend, the native one first; `gpu` any hardware GPU; `numpy` the reference device. A card is given
by its PCI address (0000:03:00.0) or its UUID. Commands that use several devices take a list (cuda:0,cuda:1,cpu) or
`all`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from bitnet_hal.discovery.known import ALIASES
from bitnet_hal.errors import UsageError
from bitnet_hal.settings import setting

_GRAMMAR = re.compile(r"([a-z][a-z0-9_-]{0,63})(?::([0-9]{1,4})|:([0-9a-z][0-9a-z:.-]{7,63}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A parsed device request; `str()` returns it in the grammar."""

    name: str  # "auto", "cpu", "gpu" or a backend
    index: int | None = None
    card: str = ""  # PCI address or UUID

    def __str__(self) -> str:
        which = self.card if self.index is None else str(self.index)
        return f"{self.name}:{which}" if which else self.name


AUTO = DeviceRequest("auto")
ALL = DeviceRequest("all")
"""Every device of the machine (`selection.every_device`); valid only if several devices are possible."""


def parse_request(text: str) -> DeviceRequest:
    """Parse a request for one device and resolve aliases. Raises UsageError if it does not match the grammar."""
    if _is_several(text):
        raise UsageError(
            f"'{text}' names several devices, but one is used here: `bitnet serve` and `bench` take several"
        )
    match = _GRAMMAR.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(
            f"'{text}' is not a device: use auto, cpu, gpu, or a backend with an optional index, as in cuda:0"
        )
    name = ALIASES.get(match[1], match[1])
    if (match[2] is not None and name in ("auto", "gpu")) or (match[3] and name in ("auto", "cpu")):
        raise UsageError(
            f"'{text}' is not a device: '{name}' takes no index; name the backend, as in cuda:{match[2] or 0}"
        )
    return DeviceRequest(name, None if match[2] is None else int(match[2]), match[3] or "")


def parse_requests(text: str) -> tuple[DeviceRequest, ...]:
    """Parse a list of requests, or "all".

    Raises UsageError as `parse_request`, and for a device that is named twice.
    """
    if text.strip().lower() == ALL.name:
        return (ALL,)
    names = text.split(",")
    if any(name.strip().lower() == ALL.name for name in names):
        raise UsageError(f"'{text}' names devices beside 'all', which stands for every device: use one or the other")
    requests = tuple(map(parse_request, names))
    if len(set(requests)) < len(requests):
        raise UsageError(f"'{text}' names a device twice")
    return requests


def resolve_requests(choice: str | None) -> tuple[DeviceRequest, ...]:
    """Return the effective requests of a caller that accepts several devices. `choice`: as in `resolve_request`."""
    listed = choice if choice is not None else os.environ.get("BITNET_DEVICE", "")
    return parse_requests(listed) if _is_several(listed) else (resolve_request(choice),)


def _is_several(text: str) -> bool:
    return "," in text or text.strip().lower() == ALL.name


def resolve_request(choice: str | None) -> DeviceRequest:
    """Return the effective request: `choice` (`--device`), else environment, configuration file, auto."""
    if choice is not None:
        return parse_request(choice)
    return _from_environment() or parse_request(str(setting("device") or AUTO.name))


def _from_environment() -> DeviceRequest | None:
    device = os.environ.get("BITNET_DEVICE", "").strip()
    backend = os.environ.get("BITNET_GPU_BACKEND", "").strip()
    index = os.environ.get("BITNET_GPU_DEVICE", "").strip()
    if index and not backend:
        raise UsageError("BITNET_GPU_DEVICE is set without BITNET_GPU_BACKEND, which says whose index it is")
    pair = parse_request(f"{backend}:{index}" if index else backend) if backend else None
    single = parse_request(device) if device else None
    if pair and single and pair != single:
        raise UsageError(
            f"BITNET_DEVICE={device} and BITNET_GPU_BACKEND={backend}"
            + (f" with BITNET_GPU_DEVICE={index}" if index else "")
            + " name different devices. Unset one of them"
        )
    return single or pair
