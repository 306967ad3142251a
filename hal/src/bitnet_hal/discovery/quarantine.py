"""Plugins, and their devices, that are ignored because they failed: at which stage, why, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pluggy

from bitnet_hal.discovery.known import REPORT, upgrade_hint
from bitnet_hal.errors import BackendIncompatibleError, BackendUnavailableError, BitnetError, GpuError, UsageError
from bitnet_hal.isolation import describe_error


class Stage(Enum):
    """The step at which a plugin failed."""

    IMPORT = "import"
    HOOKS = "hook signature"
    BACKEND = "backend construction"
    NAME = "backend name"
    API = "API version"
    DEVICES = "device list"  # the whole list, or one device of it
    DRIVER = "driver"  # the plugin works, but its driver, library or device is absent
    SETTING = "setting"  # the plugin works, but an environment variable has an invalid value


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A plugin, or one of its devices, that is ignored, and the error."""

    name: str  # name of the entry point
    distribution: str
    version: str
    stage: Stage
    error: BaseException

    @property
    def reason(self) -> str:
        """The reason in one line for people."""
        if isinstance(self.error, GpuError):
            return " ".join(str(self.error.message).split())
        if isinstance(self.error, pluggy.PluginValidationError | UsageError):
            return " ".join(str(self.error).split())
        return describe_error(self.error)

    @property
    def fix(self) -> str:
        """Advice for the user."""
        if isinstance(self.error, GpuError) and self.error.hint:
            return self.error.hint
        if self.stage is Stage.SETTING:
            return "Correct the value, or unset the variable"
        if self.stage is Stage.DEVICES:
            return f"This is a fault of {self.distribution}: upgrade it, or report it to its authors {REPORT}"
        if self.stage is Stage.DRIVER:
            return f"Install the driver that {self.distribution} needs, or uninstall {self.distribution}"
        return upgrade_hint("bitnet-core", self.distribution)

    def as_error(self) -> BitnetError:
        """Return the exception for a request that names this backend."""
        if isinstance(self.error, UsageError):
            return self.error
        if isinstance(self.error, GpuError):
            self.error.hint = self.fix
            return self.error
        kind = BackendUnavailableError if self.stage is Stage.DRIVER else BackendIncompatibleError
        error = kind(
            f"plugin {self.distribution} {self.version} failed at stage '{self.stage.value}': {self.reason}",
            backend=self.name,
            hint=self.fix,
        )
        error.__cause__ = self.error
        return error


def stage_of(error: BaseException) -> Stage:
    """Return the stage of an exception that listing the devices raised."""
    if isinstance(error, UsageError):
        return Stage.SETTING
    absent = isinstance(error, GpuError) and not isinstance(error, BackendIncompatibleError)
    return Stage.DRIVER if absent else Stage.DEVICES
