"""Calls into plugins, which may raise anything or hang, with a time limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from bitnet_hal.errors import GpuTimeoutError

NAMED_AFTER = 5.0
"""Seconds after which a warning names a plugin that is still busy."""

LEFT_OUT_AFTER = 20.0
"""Seconds after which it is ignored. Drivers of machines with many GPUs may need more than five."""

log = logging.getLogger(__name__)

T = TypeVar("T")


def bounded(
    function: Callable[[], T],
    who: str,
    what: str,
    *,
    seconds: float | None = None,
    late: Callable[[T], None] | None = None,
) -> T:
    """Return the function's result or raise its exception.

    who: the plugin. what: its activity, for messages. Raises GpuTimeoutError after `seconds` (None: LEFT_OUT_AFTER) and
    abandons the thread, because a driver's call cannot be interrupted; `late` gets a result that it returns afterwards.
    A KeyboardInterrupt of the function is the plugin's fault, as a user's reaches the main thread only.
    """
    limit = LEFT_OUT_AFTER if seconds is None else seconds
    call = _Call(function, late)
    thread = threading.Thread(target=call.run, name=f"bitnet-{who}", daemon=True)
    thread.start()
    thread.join(min(NAMED_AFTER, limit))
    if thread.is_alive() and limit > NAMED_AFTER:
        log.warning("%s is still %s after %g s", who, what, NAMED_AFTER)
        thread.join(limit - NAMED_AFTER)
    call.abandon()
    if call.failures:
        raise call.failures[0]
    if not call.results:
        raise GpuTimeoutError(
            f"{what} took longer than {limit:g} s",
            backend=who,
            hint=f"Check the driver with its own tools, or request a device of another backend than {who}",
        )
    return call.results[0]


class _Call(Generic[T]):
    """A function call in a thread that its caller may abandon."""

    def __init__(self, function: Callable[[], T], late: Callable[[T], None] | None) -> None:
        self.results: list[T] = []
        self.failures: list[BaseException] = []
        self._function = function
        self._late = late
        self._lock = threading.Lock()
        self._abandoned = False

    def run(self) -> None:
        try:
            result = self._function()
        except KeyboardInterrupt as error:
            self.failures.append(RuntimeError("it raises KeyboardInterrupt"))
            self.failures[0].__cause__ = error
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            self.failures.append(error)
        else:
            with self._lock:
                if not self._abandoned:
                    self.results.append(result)
            if not self.results and self._late is not None:
                self._late(result)

    def abandon(self) -> None:
        """Ignore a result that comes from now on."""
        with self._lock:
            self._abandoned = not self.results


def described(error: BaseException, longest: int = 300) -> str:
    """Return type and text of a plugin's exception on one line of at most `longest` characters."""
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - __str__ is the plugin's code as well
        text = ""
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:longest]


def checked_fields(value: Any, fields: dict[str, type | tuple[type, ...]]) -> str:
    """Return the first attribute whose type is wrong, as "name is TYPE", or ""."""
    for name, kind in fields.items():
        found = getattr(value, name, None)
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
            return f"{name} is {type(found).__name__}"
    return ""
