"""Guard of a plugin's device: any exception of its methods reaches core as a GpuError that names the plugin.

`auto` can then fall back to the next device, and a SystemExit in a plugin does not end the program silently.
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
from bitnet_hal.isolation import describe_error

_RETURNS: dict[str, type] = {
    **dict.fromkeys(("alloc", "compile"), object),
    **dict.fromkeys(("free_memory", "held_bytes"), int),
    "record": AbstractContextManager,
    **dict.fromkeys(("tuning", "invariant_tuning"), Tuning),
}
"""Result types that are checked, by method."""
_OTHERS = (
    *("wrap", "free", "upload", "download", "copy", "release", "launch", "replay", "synchronize", "close"),
    *("timings", "tunings", "compile_ahead", "read_async", "replay_many"),
    *("mark", "copy_from", "sensors", "kernel_resources"),
)

_HOT = ("upload", "download", "replay", "replay_many")
"""Methods of each step, which BaseDevice guards itself (`Ownership._fail`): a wrapper would cost a call per token."""

log = logging.getLogger(__name__)

Wrong = Callable[[str, str], BackendIncompatibleError]
"""(operation, fault) -> the error to raise."""


def guard(device: Device, wrong: Wrong) -> Device:
    """Return the same device with its methods guarded; `wrong` makes the errors."""
    kind = type(device)
    inherited: set[str] = set()
    if isinstance(device, BaseDevice):
        inherited = {name for name in _HOT if getattr(kind, name) is getattr(BaseDevice, name)}
        device._as_fault = lambda error, name: error if _ours(error) else _fault(error, name, wrong)
    names = [name for name in (*_RETURNS, *_OTHERS) if hasattr(kind, name) and name not in inherited]
    members = {name: _watched(kind, name, wrong) for name in names}
    device.__class__ = type(kind.__name__, (kind,), {"__slots__": (), **members})
    return device


def sound(error: BaseException) -> bool:
    """Return whether an exception is a BitnetError that can be shown: its `str` is the plugin's code and may fail."""
    if isinstance(error, KeyboardInterrupt):
        return True
    try:
        return isinstance(error, BitnetError) and bool(str(error)) and type(error.exit_code) is int
    except BaseException:  # noqa: BLE001 - its text cannot be shown
        return False


def _watched(kind: type, name: str, wrong: Wrong) -> Callable[..., Any]:
    expected = _RETURNS.get(name)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            result = getattr(kind, name)(self, *arguments, **named)
        except BaseException as error:
            if _ours(error):
                raise
            raise _fault(error, name, wrong) from error
        if expected is not None and (result is None or not isinstance(result, expected)):
            raise wrong(name, f"it returns {type(result).__name__}")
        return _Watched(result, wrong) if name == "record" else result

    return call


class _Watched:
    """The guarded context manager of `record`. Exceptions of the block itself pass unchanged."""

    def __init__(self, inner: AbstractContextManager[Any], wrong: Wrong) -> None:
        self._inner = inner
        self._wrong = wrong

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
    """Return whether an exception passes unchanged."""
    return sound(error) or isinstance(error, MemoryError)  # a full host is not the plugin's fault


def _fault(error: BaseException, name: str, wrong: Wrong) -> BackendIncompatibleError:
    log.debug("%s of a plugin fails", name, exc_info=error)
    return wrong(name, describe_error(error))
