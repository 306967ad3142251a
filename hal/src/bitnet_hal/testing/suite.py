"""The base class of a plugin's conformance test."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, ClassVar

import pytest

from bitnet_hal.device import Backend
from bitnet_hal.testing.rules.devices import DeviceRules
from bitnet_hal.testing.rules.errors import ErrorRules
from bitnet_hal.testing.rules.features import FeatureRules
from bitnet_hal.testing.rules.invariance import InvarianceRules
from bitnet_hal.testing.rules.kernels import KernelRules
from bitnet_hal.testing.rules.liveness import LivenessRules
from bitnet_hal.testing.rules.memory import MemoryRules
from bitnet_hal.testing.rules.plugin import PluginRules
from bitnet_hal.testing.rules.recordings import RecordingRules
from bitnet_hal.testing.rules.speed import SpeedRules

RULES = "bitnet.conformance"
"""Entry-point group of rules in other packages; bitnet-core registers its rules about whole models as `model`."""


class NoModelRules:
    """Placeholder for the rules about whole models if bitnet-core is not installed."""

    def test_whole_models(self) -> None:
        """Skip with the name of the missing package."""
        pytest.skip("the rules about whole models need bitnet-core, which is not installed")


def _model_rules() -> Any:
    for entry in entry_points(group=RULES, name="model"):
        return entry.load()
    return NoModelRules


class BackendConformance(
    SpeedRules,
    _model_rules(),  # type: ignore[misc]  # known only at run time
    ErrorRules,
    LivenessRules,
    FeatureRules,
    RecordingRules,
    MemoryRules,
    DeviceRules,
    PluginRules,
    InvarianceRules,
    KernelRules,
):  # pytest runs the last base first: kernels that do not compile are the first failure shown
    """The rules of the kit. Derive from it in a test module, set `backend`, and run pytest.

    backend: the name of an installed entry point ("opencl"), a Backend, or a function that returns one (for a plugin
    that is not installed). Every rule runs on every device of the backend. If there is no device, the rules are skipped
    with the reason, or fail with `--require-device`.
    """

    backend: ClassVar[str | Backend | Callable[[], Backend]]
