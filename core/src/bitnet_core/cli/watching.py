"""`bitnet devices --watch`: devices that come and go."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterable, Iterator
from typing import Any

from bitnet_hal.device import DeviceInfo
from bitnet_hal.discovery.presence import Presence, Watch, watchable

from bitnet_core.cli.console import say, write_text
from bitnet_core.units import size

WATCH_SECONDS = 5.0
"""Seconds between two queries of a driver."""


def watch_devices(listed: Iterable[DeviceInfo], *, as_json: bool) -> None:
    """Print the devices that arrive and depart, until the user interrupts. listed: those that are there now.

    as_json: print one JSON object a line, also for those.
    """
    listed = list(listed)
    names = watchable()
    for info in listed if as_json else ():
        write_text(json.dumps(_arrived("present", info)) + "\n")
    say(f"watching {', '.join(names) or 'nothing: no backend has devices that come and go'}; Ctrl-C ends it")
    known = {name: Presence(name, tuple(info for info in listed if info.backend == name)) for name in names}
    found: queue.Queue[Presence] = queue.Queue()
    watch = Watch(names, found.put, WATCH_SECONDS)
    watch.start()
    try:
        while True:
            try:
                presence = found.get(timeout=1)  # without a limit, Ctrl-C does not interrupt it on Windows
            except queue.Empty:
                continue
            for event in changes(known[presence.backend], presence):
                write_text((json.dumps(event) if as_json else _line(event)) + "\n")
            known[presence.backend] = presence
    finally:
        watch.stop()


def changes(before: Presence, now: Presence) -> Iterator[dict[str, Any]]:
    """Yield the events between two answers of a backend, as JSON objects."""
    if now.reason:
        if now.reason != before.reason:
            yield _event("silent", now.backend, reason=now.reason)
    elif before.reason:
        yield _event("answers", now.backend)
    old, new = _by_card(before), _by_card(now)
    for card, info in old.items():
        if card not in new:
            yield _event("departed", info.request, name=info.name)
    for card, info in new.items():
        if card not in old:
            yield _arrived("arrived", info)


def _by_card(presence: Presence) -> dict[str, DeviceInfo]:
    """Return the devices by a key that stays the same when another one departs and indices move."""
    return {info.physical_id or info.request: info for info in presence.devices}


def _arrived(event: str, info: DeviceInfo) -> dict[str, Any]:
    more = {"type": info.type.value, "total_memory": info.total_memory, "driver": info.driver}
    return _event(event, info.request, name=info.name, **more)


def _event(event: str, device: str, **more: Any) -> dict[str, Any]:
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, "device": device, **more}


def _line(event: dict[str, Any]) -> str:
    if event["event"] == "silent":
        words = event["reason"]
    elif event["event"] == "arrived":
        memory = size(event["total_memory"]) if event["total_memory"] else "memory not reported"
        words = f"{event['name']} ({event['type']}, {memory}, {event['driver'] or 'driver not reported'})"
    else:
        words = event.get("name", "")
    return f"{event['time'][11:19]}  {event['event']:<9} {event['device']}  {words}".rstrip()
