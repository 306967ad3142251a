"""Registry of backends: plugins are loaded one by one, and one that fails is quarantined."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import importlib_metadata
import pluggy

from bitnet_hal import hooks
from bitnet_hal.device import Backend, Device, DeviceInfo
from bitnet_hal.discovery.child import unresponsive_drivers
from bitnet_hal.discovery.claims import check_api, check_rank, log_unknown, reclassify_software, validate
from bitnet_hal.discovery.known import GPU_BACKENDS, KNOWN, REPORT, RESERVED, by_driver
from bitnet_hal.discovery.plugin_device import Opener
from bitnet_hal.discovery.quarantine import Quarantine, Stage, stage_of
from bitnet_hal.errors import (
    BackendIncompatibleError,
    BackendUnavailableError,
    UsageError,
)
from bitnet_hal.isolation import bounded

REFERENCE = importlib_metadata.EntryPoint("numpy", "bitnet_hal.reference.plugin", hooks.ENTRY_POINT_GROUP)

MAX_DEVICES = 1024
"""Maximum devices of one backend."""

log = logging.getLogger(__name__)


class _CorePolicy:
    """Core's own choice of device, called after every plugin's."""

    @hooks.hookimpl(trylast=True)
    def bitnet_select_device(self, devices: list[DeviceInfo]) -> DeviceInfo:
        return devices[0]


class Registry:
    """The backends of this environment. Construction imports the plugins; `devices` and `probe` load drivers."""

    def __init__(self) -> None:
        self.backends: dict[str, Backend] = {}
        self.quarantined: list[Quarantine] = []
        self._plugins = pluggy.PluginManager(hooks.PROJECT)
        self._plugins.add_hookspecs(hooks)
        self._plugins.register(_CorePolicy(), name="core-policy")
        self._origins: dict[str, tuple[str, str]] = {}  # name of the entry point -> distribution, version
        self._devices: dict[str, tuple[DeviceInfo, ...]] = {}
        self._asked: set[str] = set()
        self._hashes: dict[str, str] = {}
        self._opener = Opener()
        for entry in _entry_points():
            self._load(entry)

    def devices(self, name: str) -> tuple[DeviceInfo, ...]:
        """Return the devices of one backend, listed once. A backend that fails is quarantined and has none."""
        self.probe([name])
        return self._devices[name]

    def probe(self, names: Sequence[str]) -> None:
        """List the devices of backends in parallel, but those of backends that may share a driver in turn."""
        self._ask_drivers(names)
        unasked = [name for name in names if name not in self._devices]
        before = len(self.quarantined)
        queues = by_driver(unasked)
        pool = ThreadPoolExecutor(len(queues) + 1)
        answered = False
        try:
            imported = pool.submit(_import_modules, [name for queue in queues for name in queue[1:]])
            for found in pool.map(lambda queue: self._list_in_turn(queue, imported), queues):
                self._devices.update(found)
            answered = True
        finally:
            pool.shutdown(wait=answered)  # an interrupt does not wait for a driver
        self.quarantined[before:] = sorted(self.quarantined[before:], key=lambda entry: unasked.index(entry.name))

    def _list_in_turn(self, queue: Sequence[str], imported: Future[None]) -> dict[str, tuple[DeviceInfo, ...]]:
        """List the devices of backends in turn.

        imported: done when the modules of all backends but the first are imported: threads must not import
        concurrently.
        """
        found: dict[str, tuple[DeviceInfo, ...]] = {}
        for name in queue:
            if found:
                imported.result()
            found[name] = self.probed(name)
        return found

    def probed(self, name: str, in_time: bool = True) -> tuple[DeviceInfo, ...]:
        """List the devices of a backend now; () if it fails, which quarantines it. in_time: limit the time."""
        try:
            if not in_time:
                return self._listed(name)
            return bounded(lambda: self._listed(name), name, "looking for its devices")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything; the others still work
            self._quarantine(name, *self._origins[name], stage_of(error), error)
            return ()

    def _listed(self, name: str) -> tuple[DeviceInfo, ...]:
        """List the usable devices of a backend; each of the others gets its own quarantine entry."""
        backend = self.backends[name]
        usable = list[DeviceInfo]()
        listed = tuple(islice(backend.devices(), MAX_DEVICES))
        for info in listed:
            if problem := validate(backend, info, usable):
                hint = f"Report it to the authors of the backend {REPORT}"
                error = BackendIncompatibleError(problem, backend=name, hint=hint)
                self._quarantine(name, *self._origins[name], Stage.DEVICES, error)
            else:
                log_unknown(info)
                usable.append(reclassify_software(info))
        if not listed:
            raise BackendUnavailableError("the driver shows no device", backend=name)
        return tuple(usable)

    def _ask_drivers(self, names: Sequence[str]) -> None:
        """Check in child processes whether the GPU drivers of these backends answer, all at once (see `child`)."""
        asked = {name: self._origins[name][1] for name in names if name in GPU_BACKENDS and name not in self._devices}
        for name, reason in unresponsive_drivers(
            {name: v for name, v in asked.items() if name not in self._asked}
        ).items():
            self.add_result(name)
            self.quarantine_unresponsive(name, reason)
        self._asked.update(asked)

    def add_result(self, name: str, devices: Iterable[DeviceInfo] = (), left_out: Sequence[Quarantine] = ()) -> None:
        """Store the result of `probed` in another process, so that this one need not ask the backend."""
        self._devices[name] = tuple(devices)
        self.quarantined.extend(left_out)

    def quarantine_unresponsive(self, name: str, reason: str) -> None:
        """Quarantine a backend whose driver cannot be asked."""
        hint = "Check the driver with its own tools; bitnet asks it again in ten minutes at the latest"
        error = BackendUnavailableError(reason, backend=name, hint=hint)
        self._quarantine(name, *self._origins[name], Stage.DRIVER, error)

    def open(self, info: DeviceInfo) -> Device:
        """Open a listed device. Raises a GpuError for any fault of the plugin (see `Opener`)."""
        return self._opener.open(self.backends[info.backend], info, self._origins[info.backend])

    def failure(self, name: str) -> Quarantine | None:
        """Return the quarantine entry of a backend, None if there is none."""
        return next((entry for entry in self.quarantined if entry.name == name), None)

    def origin(self, name: str) -> tuple[str, str]:
        """Return the distribution and version of a backend."""
        return self._origins[name]

    def kernels_hash(self, name: str) -> str:
        """Return a hash of all files of a backend's package, and so of its kernels."""
        if name not in self._hashes:
            module = self._plugins.get_plugin(name)
            file = Path(getattr(module, "__file__", None) or __file__)
            files = file.parent.rglob("*") if getattr(module, "__package__", "") else [file]
            digest = hashlib.sha256(repr(self._origins[name]).encode())
            for path in sorted(path for path in files if path.suffix != ".pyc" and path.is_file()):
                digest.update(path.name.encode() + path.read_bytes())
            self._hashes[name] = digest.hexdigest()
        return self._hashes[name]

    def hook_functions(self, hook: str) -> Iterator[tuple[str, Callable[..., Any], tuple[str, ...]]]:
        """Yield (plugin, function, argument names) of a hook, in calling order.

        Callers call the functions one by one, as pluggy's own call stops at the first exception of any plugin.
        """
        for impl in reversed(getattr(self._plugins.hook, hook).get_hookimpls()):
            yield impl.plugin_name, impl.function, tuple(impl.argnames)

    def _load(self, entry: importlib_metadata.EntryPoint) -> None:
        distribution, version = _named(entry.dist) if entry.dist else ("bitnet-hal", "")
        if entry.name in self._origins:
            taken = self._origins[entry.name][0]
            error = BackendIncompatibleError(
                f"the name '{entry.name}' is taken by {taken}", hint=f"Uninstall {taken} or {distribution}"
            )
            self._quarantine(entry.name, distribution, version, Stage.NAME, error)
            return
        stage = Stage.NAME
        try:
            if entry.name in RESERVED:
                hint = f"Report it to its authors {REPORT}"
                raise BackendIncompatibleError(f"the name '{entry.name}' is reserved", hint=hint)
            stage = Stage.IMPORT
            module = bounded(entry.load, entry.name, "being imported")
            stage = Stage.HOOKS
            self._register(module, entry.name)
            stage = Stage.BACKEND
            backends = [f for plugin, f, _ in self.hook_functions("bitnet_backend") if plugin == entry.name]
            if backends:
                backend: Backend = bounded(backends[0], entry.name, "making its backend")
                stage = Stage.NAME
                if backend.name != entry.name:
                    raise BackendIncompatibleError(f"its backend calls itself '{backend.name}', not '{entry.name}'")
                stage = Stage.API
                check_api(backend.api, distribution)
                check_rank(getattr(backend, "rank", 0))
                self.backends[entry.name] = backend
            self._origins[entry.name] = (distribution, version)
        except KeyboardInterrupt:
            raise
        except BaseException as failure:  # noqa: BLE001 - a plugin may raise anything; the others still work
            self._unregister(entry.name)
            stage = Stage.SETTING if isinstance(failure, UsageError) else stage
            self._quarantine(entry.name, distribution, version, stage, failure)

    def _register(self, module: object, name: str) -> None:
        self._plugins.register(module, name=name)
        self._plugins.check_pending()  # else a misspelled hook would never be called
        if not self._plugins.get_hookcallers(module):
            raise BackendIncompatibleError("it implements no bitnet hook")

    def _unregister(self, name: str) -> None:
        # a plugin that failed validation stays registered until it is removed
        if self._plugins.get_plugin(name) is not None:
            self._plugins.unregister(name=name)

    def _quarantine(self, name: str, distribution: str, version: str, stage: Stage, error: BaseException) -> None:
        entry = Quarantine(name, distribution, version, stage, error)
        again = any((one.name, one.distribution) == (name, distribution) for one in self.quarantined)
        self.quarantined.append(entry)
        # one warning per plugin, however many of its devices are invalid; an absent driver is normal on a machine with
        # another vendor's hardware
        level = logging.INFO if again or stage is Stage.DRIVER else logging.WARNING
        log.log(level, "plugin %s (%s %s) is ignored: %s: %s", name, distribution, version, stage.value, entry.reason)


@cache
def registry() -> Registry:
    """Return the registry of this process; `registry.cache_clear()` makes it look for plugins again."""
    return Registry()


def kernels_hash(name: str) -> str:
    """Return `Registry.kernels_hash` of the one registry."""
    return registry().kernels_hash(name)


def _import_modules(names: Sequence[str]) -> None:
    """Import the slow modules of backends whose turn comes later; they report failures themselves."""
    for backend in [KNOWN[name] for name in names if name in KNOWN]:
        for module in backend.modules:
            with suppress(Exception):
                bounded(partial(import_module, module), backend.name, "being imported")


def _entry_points() -> list[importlib_metadata.EntryPoint]:
    found = list(importlib_metadata.entry_points(group=hooks.ENTRY_POINT_GROUP))
    if not any(entry.value == REFERENCE.value for entry in found):
        found.append(REFERENCE)  # source trees and frozen programs have no metadata
    return sorted(found, key=lambda entry: (entry.value != REFERENCE.value, entry.name))


def _named(distribution: Any) -> tuple[str, str]:
    """Return name and version, read by pattern: parsing all of the metadata takes longer."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    name, version = (re.search(rf"^{field}: *(\S+)", text, re.MULTILINE) for field in ("Name", "Version"))
    return (name[1], version[1]) if name and version else (distribution.name, distribution.version)
