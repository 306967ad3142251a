"""The class that a plugin's conformance test derives from."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, ClassVar

import pytest

from bitnet_hal.device import Backend
from bitnet_hal.testing.rules.devices import DeviceRules
from bitnet_hal.testing.rules.errors import ErrorRules
from bitnet_hal.testing.rules.kernels import KernelRules
from bitnet_hal.testing.rules.liveness import LivenessRules
from bitnet_hal.testing.rules.memory import MemoryRules
from bitnet_hal.testing.rules.plugin import PluginRules
from bitnet_hal.testing.rules.recordings import RecordingRules
from bitnet_hal.testing.rules.speed import SpeedRules

RULES = "bitnet.conformance"
"""Entry-point group of rules that need more than this package: `model` are bitnet-core's about whole models."""


class NoModelRules:
    """Stands for the rules about whole models where bitnet-core is not installed."""

    def test_whole_models(self) -> None:
        """Skip, and say what is missing."""
        pytest.skip("the rules about whole models need bitnet-core, which is not installed")


def _model_rules() -> Any:
    for entry in entry_points(group=RULES, name="model"):
        return entry.load()
    return NoModelRules


class BackendConformance(
    SpeedRules,
    _model_rules(),  # type: ignore[misc]  # known at run time alone
    ErrorRules,
    LivenessRules,
    RecordingRules,
    MemoryRules,
    DeviceRules,
    PluginRules,
    KernelRules,
):  # pytest runs the last of these first: a kernel that does not compile is the first failure that one sees
    """Derive from this in a test module, name the backend, and run pytest.

    backend: the name of an installed entry point ("opencl"), or a Backend, or a function that makes one (for a plugin
    that is not installed). Every rule runs on every device of the backend. A device that is absent skips with its
    reason, or fails under `--require-device`.
    """

    backend: ClassVar[str | Backend | Callable[[], Backend]]
