"""Device lists for the command line: all backends are asked concurrently, each in a fork of this process.

Forks share no driver state and no import lock, and a crash loses the devices of one backend only. If forks are not
safe, the registry asks the backends in this process as usual.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from bitnet_hal.discovery.child import Child, Fork, wait_for
from bitnet_hal.discovery.driver_cache import remember, remembered
from bitnet_hal.discovery.known import GPU_BACKENDS
from bitnet_hal.discovery.plain import from_plain, to_plain
from bitnet_hal.discovery.quarantine import Quarantine, Stage
from bitnet_hal.discovery.registry import Registry, registry
from bitnet_hal.errors import BackendIncompatibleError, BackendUnavailableError, UsageError

log = logging.getLogger(__name__)


@contextmanager
def probe_in_forks() -> Iterator[Callable[[], None]]:
    """Ask all backends. Yields a function that waits for the answers and adds them to the registry."""
    if not _forks_are_safe() or "BITNET_GPU_FAKE" in os.environ:  # which hides drivers
        yield lambda: None
        return
    import bitnet_hal.plugin  # noqa: F401 - most backends need it: importing it once is enough

    found = registry()
    forks: dict[str, Fork] = {}
    versions = {name: found.origin(name)[1] for name in found.backends if name in GPU_BACKENDS}
    known = remembered(versions)
    try:
        for name in reversed(found.backends):  # webgpu takes the longest
            if known.get(name):
                continue
            forks[name] = Fork()  # stored before it begins, so that an interrupt ends it too
            try:
                forks[name].begin(partial(_probe, found, name))
            except OSError:  # this user may have no more processes: the remaining backends are asked in this one
                del forks[name]
                break
        yield lambda: _store_answers(found, forks, versions, known)
    finally:
        for fork in forks.values():
            fork.kill()
            fork.wait()


def _forks_are_safe() -> bool:
    """Return whether this process has one thread and has loaded no library with its own threads or drivers.

    On macOS system frameworks do not work in forks.
    """
    return sys.platform == "linux" and threading.active_count() == 1 and "numpy" not in sys.modules


def _probe(found: Registry, name: str) -> dict[str, Any]:
    """Run in the fork: return the devices of a backend and its quarantine entries as plain data."""
    before = len(found.quarantined)
    devices = found.probed(name, in_time=False)
    left_out = [(one.stage.value, one.reason, one.fix) for one in found.quarantined[before:]]
    return {"devices": [to_plain(info) for info in devices], "left_out": left_out}


def _store_answers(
    found: Registry, forks: Mapping[str, Fork], versions: Mapping[str, str], known: Mapping[str, str]
) -> None:
    """Wait for the forks and store their answers in the registry and the cache."""
    children = {name: Child(fork, fork.pipe) for name, fork in forks.items()}
    reasons = {**known, **wait_for(children)}
    for name in found.backends:
        if reasons.get(name):
            log.warning("%s is ignored: %s", name, reasons[name])
            found.add_result(name)
            found.quarantine_unresponsive(name, reasons[name])
        elif name in children and children[name].answer:
            answer = json.loads(children[name].answer)
            left_out = [_quarantine(found, name, *entry) for entry in answer["left_out"]]
            found.add_result(name, map(from_plain, answer["devices"]), left_out)
    news = {name: reasons[name] for name in children if name in versions and reasons[name] != known.get(name)}
    if news:
        remember(news, versions)


def _quarantine(found: Registry, name: str, stage: str, reason: str, fix: str) -> Quarantine:
    if Stage(stage) is Stage.SETTING:
        return Quarantine(name, *found.origin(name), Stage.SETTING, UsageError(reason))
    kind = BackendUnavailableError if Stage(stage) is Stage.DRIVER else BackendIncompatibleError
    return Quarantine(name, *found.origin(name), Stage(stage), kind(reason, backend=name, hint=fix))
