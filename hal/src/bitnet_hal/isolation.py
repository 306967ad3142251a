"""Calls into plugins, which may raise anything or hang, with a time limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

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
    results: list[T] = []
    failures: list[BaseException] = []
    lock = threading.Lock()
    abandoned = False

    def work() -> None:
        try:
            result = function()
        except KeyboardInterrupt as error:
            failures.append(RuntimeError("it raises KeyboardInterrupt"))
            failures[0].__cause__ = error
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            failures.append(error)
        else:
            with lock:
                if not abandoned:
                    results.append(result)
            if not results and late is not None:
                late(result)

    thread = threading.Thread(target=work, name=f"bitnet-{who}", daemon=True)
    thread.start()
    thread.join(min(NAMED_AFTER, limit))
    if thread.is_alive() and limit > NAMED_AFTER:
        log.warning("%s is still %s after %g s", who, what, NAMED_AFTER)
        thread.join(limit - NAMED_AFTER)
    with lock:
        abandoned = not results
    if failures:
        raise failures[0]
    if not results:
        raise GpuTimeoutError(
            f"{what} took longer than {limit:g} s",
            backend=who,
            hint=f"Check the driver with its own tools, or request a device of another backend than {who}",
        )
    return results[0]


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
