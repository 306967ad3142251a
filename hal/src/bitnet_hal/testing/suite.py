"""The class that a plugin's conformance test derives from."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from bitnet_core.hal.device import Backend
from bitnet_core.testing.areas.devices import DeviceRules
from bitnet_core.testing.areas.errors import ErrorRules
from bitnet_core.testing.areas.kernels import KernelRules
from bitnet_core.testing.areas.liveness import LivenessRules
from bitnet_core.testing.areas.memory import MemoryRules
from bitnet_core.testing.areas.model import ModelRules
from bitnet_core.testing.areas.plugin import PluginRules
from bitnet_core.testing.areas.recordings import RecordingRules
from bitnet_core.testing.areas.speed import SpeedRules


class BackendConformance(
    SpeedRules,
    ModelRules,
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
