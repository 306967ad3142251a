"""An opened device of a plugin: whatever its methods raise reaches core as a GpuError that names the plugin.

So `auto` goes on with the next device, and a SystemExit in a plugin does not end the program in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from bitnet_hal.base import BaseDevice
from bitnet_hal.device import Device, Tuning
from bitnet_hal.errors import BackendIncompatibleError, BitnetError
from bitnet_hal.isolation import described

_GIVES: dict[str, type] = {
    **dict.fromkeys(("alloc", "compile"), object),
    **dict.fromkeys(("free_memory", "held_bytes"), int),
    "record": AbstractContextManager,
    "tuning": Tuning,
}
"""What these methods must return."""
_OTHERS = (
    *("wrap", "free", "upload", "download", "copy", "release", "launch", "replay", "synchronize", "close"),
    *("timings", "tunings", "read_async"),
)

_HOT = ("upload", "download", "replay")
"""Methods of each step, which BaseDevice guards itself (`Ownership._fail`): a wrapper would cost a call per token."""

log = logging.getLogger(__name__)

Wrong = Callable[[str, str], BackendIncompatibleError]
"""(operation, what is wrong) -> the error."""


def guard(device: Device, wrong: Wrong) -> Device:
    """The same device, with its methods watched."""
    kind = type(device)
    inherited: set[str] = set()
    if isinstance(device, BaseDevice):
        inherited = {name for name in _HOT if getattr(kind, name) is getattr(BaseDevice, name)}
        device._as_fault = lambda error, name: error if _ours(error) else _fault(error, name, wrong)
    names = [name for name in (*_GIVES, *_OTHERS) if hasattr(kind, name) and name not in inherited]
    members = {name: _watched(kind, name, wrong) for name in names}
    device.__class__ = type(kind.__name__, (kind,), {"__slots__": (), **members})
    return device


def sound(error: BaseException) -> bool:
    """Whether an exception of a plugin is one of ours that can be shown: its text is the plugin's code as well."""
    if isinstance(error, KeyboardInterrupt):
        return True
    try:
        return isinstance(error, BitnetError) and bool(str(error)) and type(error.exit_code) is int
    except BaseException:  # noqa: BLE001 - whatever it is, it cannot be shown
        return False


def _watched(kind: type, name: str, wrong: Wrong) -> Callable[..., Any]:
    expected = _GIVES.get(name)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            result = getattr(kind, name)(self, *arguments, **named)
        except BaseException as error:
            if _ours(error):
                raise
            raise _fault(error, name, wrong) from error
        if expected is not None and (result is None or not isinstance(result, expected)):
            raise wrong(name, f"it gives {type(result).__name__}")
        return _Watched(result, wrong) if name == "record" else result

    return call


class _Watched:
    """What `record` returns. What the block raises goes through as it is."""

    def __init__(self, inner: AbstractContextManager[Any], wrong: Wrong) -> None:
        self._inner, self._wrong = inner, wrong

    def __enter__(self) -> Any:
        try:
            return self._inner.__enter__()
        except BaseException as error:
            if _ours(error):
                raise
            raise _fault(error, "record", self._wrong) from error

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return self._inner.__exit__(kind, raised, trace)
        except BaseException as error:
            if error is raised or _ours(error):
                raise
            raise _fault(error, "record", self._wrong) from error


def _ours(error: BaseException) -> bool:
    """Tell whether an exception goes through as it is, with the driver's own as its cause."""
    return sound(error) or isinstance(error, MemoryError)  # the host's memory is nobody's fault


def _fault(error: BaseException, name: str, wrong: Wrong) -> BackendIncompatibleError:
    """Make the error that names the plugin."""
    log.debug("%s of a plugin fails", name, exc_info=error)
    return wrong(name, described(error))
