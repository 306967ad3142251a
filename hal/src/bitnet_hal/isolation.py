"""Calls into plugins, which may raise anything or hang, with a time limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from bitnet_hal.errors import GpuTimeoutError

WARNED_AFTER = 5.0
"""Seconds after which a busy plugin is named in a warning."""

IGNORED_AFTER = 20.0
"""Seconds after which a busy plugin is ignored. Drivers of machines with many GPUs may need more than five."""

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

    who: the plugin. what: its activity, for messages. Raises GpuTimeoutError after `seconds` (None: IGNORED_AFTER) and
    abandons the thread, because a driver's call cannot be interrupted; `late` receives the result if there is one after
    all. A KeyboardInterrupt of the function is the plugin's fault: a user's interrupt reaches the main thread only.
    """
    limit = IGNORED_AFTER if seconds is None else seconds
    call = _Call(function, late)
    thread = threading.Thread(target=call.run, name=f"bitnet-{who}", daemon=True)
    thread.start()
    thread.join(min(WARNED_AFTER, limit))
    if thread.is_alive() and limit > WARNED_AFTER:
        log.warning("%s is still %s after %g s", who, what, WARNED_AFTER)
        thread.join(limit - WARNED_AFTER)
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
        """Pass the result to `late` from now on."""
        with self._lock:
            self._abandoned = not self.results


def describe_error(error: BaseException, longest: int = 300) -> str:
    """Return the type and text of a plugin's exception as one line of at most `longest` characters."""
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
