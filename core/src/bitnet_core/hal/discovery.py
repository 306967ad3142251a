"""Finding backends: every plugin is loaded apart from the others, and one that fails is put in quarantine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import importlib_metadata
import pluggy

from bitnet_core.errors import BackendIncompatibleError, BackendUnavailableError, GpuError
from bitnet_core.hal import hooks
from bitnet_core.hal.device import API_VERSION, Backend, Device, DeviceInfo

GROUP = "bitnet.backends"
REFERENCE = importlib_metadata.EntryPoint("numpy", "bitnet_core.reference.plugin", GROUP)

log = logging.getLogger(__name__)


class Stage(Enum):
    """Where a plugin failed."""

    IMPORT = "import"
    HOOKS = "hook signature"
    BACKEND = "backend construction"
    NAME = "backend name"
    API = "API version"
    DRIVER = "driver"  # the plugin is sound, its driver, library or device is absent


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A plugin that is left out, and why."""

    name: str  # of the entry point
    distribution: str
    version: str
    stage: Stage
    error: BaseException

    @property
    def reason(self) -> str:
        """One line for people."""
        text = str(self.error)
        if isinstance(self.error, GpuError):
            text = self.error.message
        elif not isinstance(self.error, pluggy.PluginValidationError):
            text = f"{type(self.error).__name__}: {text}" if text else type(self.error).__name__
        return " ".join(text.split())

    @property
    def fix(self) -> str:
        """What to do about it."""
        if isinstance(self.error, GpuError) and self.error.hint:
            return self.error.hint
        if self.stage is Stage.DRIVER:
            return f"Install the driver that {self.distribution} needs, or uninstall {self.distribution}"
        return f"Upgrade {self.distribution} and bitnet-core together: pip install -U bitnet-core {self.distribution}"

    def as_error(self) -> GpuError:
        """The exception for somebody who asked for this backend by name."""
        if isinstance(self.error, GpuError):
            return self.error
        kind = BackendUnavailableError if self.stage is Stage.DRIVER else BackendIncompatibleError
        error = kind(
            f"plugin {self.distribution} {self.version} failed at stage '{self.stage.value}': {self.reason}",
            backend=self.name,
            hint=self.fix,
        )
        error.__cause__ = self.error
        return error


class _CorePolicy:
    """Core's own choice of device, asked after every plugin's."""

    @hooks.hookimpl(trylast=True)
    def bitnet_select_device(self, devices: list[DeviceInfo]) -> DeviceInfo:
        return devices[0]


class Registry:
    """The backends of this environment. Nothing is imported before the first use, no driver loaded before `devices`."""

    def __init__(self) -> None:
        self.backends: dict[str, Backend] = {}
        self.quarantined: list[Quarantine] = []
        self._plugins = pluggy.PluginManager(hooks.PROJECT)
        self._plugins.add_hookspecs(hooks)
        self._plugins.register(_CorePolicy(), name="core-policy")
        self._origins: dict[str, tuple[str, str]] = {}  # entry point -> distribution, version
        self._devices: dict[str, tuple[DeviceInfo, ...]] = {}
        for entry in _entry_points():
            self._load(entry)

    def devices(self, name: str) -> tuple[DeviceInfo, ...]:
        """The devices of one backend, asked for once. A backend that fails here is quarantined and has none."""
        if name not in self._devices:
            try:
                self._devices[name] = _checked_devices(self.backends[name])
            except Exception as error:  # noqa: BLE001 - a driver may fail in any way; the others go on
                self._devices[name] = ()
                self._quarantine(name, *self._origins[name], Stage.DRIVER, error)
        return self._devices[name]

    def open(self, info: DeviceInfo) -> Device:
        """Open one of the devices listed; GpuError of any kind."""
        return self.backends[info.backend].open(info.index)

    def failure(self, name: str) -> Quarantine | None:
        """Why the plugin of that name is left out, if it is."""
        return next((entry for entry in self.quarantined if entry.name == name), None)

    def origin(self, name: str) -> tuple[str, str]:
        """Distribution and version that a backend comes from."""
        return self._origins[name]

    def hook_functions(self, hook: str) -> Iterator[tuple[str, Callable[..., Any], tuple[str, ...]]]:
        """(plugin, function, argument names) of a hook, in the order of the calls.

        A hook call of pluggy stops at the first exception of any plugin, so callers call these one by one.
        """
        for impl in reversed(getattr(self._plugins.hook, hook).get_hookimpls()):
            yield impl.plugin_name, impl.function, tuple(impl.argnames)

    def _load(self, entry: importlib_metadata.EntryPoint) -> None:
        distribution = entry.dist.name if entry.dist else "bitnet-core"
        version = entry.dist.version if entry.dist else ""
        if entry.name in self._origins:
            taken = self._origins[entry.name][0]
            error = BackendIncompatibleError(
                f"the name '{entry.name}' is taken by {taken}", hint=f"Uninstall {taken} or {distribution}"
            )
            self._quarantine(entry.name, distribution, version, Stage.NAME, error)
            return
        stage = Stage.IMPORT
        try:
            module = entry.load()
            stage = Stage.HOOKS
            self._register(module, entry.name)
            stage = Stage.BACKEND
            backends = [f for plugin, f, _ in self.hook_functions("bitnet_backend") if plugin == entry.name]
            if backends:
                backend: Backend = backends[0]()
                stage = Stage.NAME
                if backend.name != entry.name:
                    raise BackendIncompatibleError(f"its backend calls itself '{backend.name}', not '{entry.name}'")
                stage = Stage.API
                _check_api(backend.api)
                self.backends[entry.name] = backend
            self._origins[entry.name] = (distribution, version)
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - no plugin may take the others down
            self._unregister(entry.name)
            self._quarantine(entry.name, distribution, version, stage, failure)

    def _register(self, module: object, name: str) -> None:
        self._plugins.register(module, name=name)
        self._plugins.check_pending()  # a misspelled hook would never be called
        if not self._plugins.get_hookcallers(module):
            raise BackendIncompatibleError("it implements no bitnet hook")

    def _unregister(self, name: str) -> None:
        # a plugin that failed validation stays registered until it is removed
        if self._plugins.get_plugin(name) is not None:
            self._plugins.unregister(name=name)

    def _quarantine(self, name: str, distribution: str, version: str, stage: Stage, error: BaseException) -> None:
        entry = Quarantine(name, distribution, version, stage, error)
        self.quarantined.append(entry)
        # an absent driver is the usual state of a machine that has another vendor's hardware
        level = logging.INFO if stage is Stage.DRIVER else logging.WARNING
        log.log(level, "plugin %s (%s %s) is left out: %s: %s", name, distribution, version, stage.value, entry.reason)


@cache
def registry() -> Registry:
    """The one registry of this process; `registry.cache_clear()` looks again."""
    return Registry()


def _entry_points() -> list[importlib_metadata.EntryPoint]:
    found = list(importlib_metadata.entry_points(group=GROUP))
    if not any(entry.value == REFERENCE.value for entry in found):
        found.append(REFERENCE)  # a source tree or a frozen program has no metadata
    return sorted(found, key=lambda entry: (entry.value != REFERENCE.value, entry.name))


def _check_api(api: tuple[int, int]) -> None:
    """Same major, and a minor that this core already has."""
    major, minor = api
    wanted = f"it was written for version {major}.{minor} of the HAL, this core has {API_VERSION[0]}.{API_VERSION[1]}"
    if major < API_VERSION[0]:
        raise BackendIncompatibleError(wanted, hint="Upgrade the plugin")
    if major > API_VERSION[0] or minor > API_VERSION[1]:
        raise BackendIncompatibleError(wanted, hint="Upgrade core: pip install -U bitnet-core")


def _checked_devices(backend: Backend) -> tuple[DeviceInfo, ...]:
    found = tuple(backend.devices())
    for position, info in enumerate(found):
        if info.backend != backend.name or info.index != position:
            raise BackendIncompatibleError(
                f"device {position} of '{backend.name}' calls itself '{info.request}'", backend=backend.name
            )
    if not found:
        raise BackendUnavailableError("the driver shows no device", backend=backend.name)
    return found
