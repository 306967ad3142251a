"""bitnet's conformance kit on every device of this backend."""

from collections.abc import Sequence

from bitnet_hal.errors import DeviceLostError, LaunchError, OutOfMemoryError
from bitnet_hal.testing import BackendConformance
from bitnet_hal.testing.rules.errors import Failure
from bitnet_newbackend.errors import Status, check
from bitnet_newbackend.plugin import NewBackendBackend


class TestConformance(BackendConformance):
    backend = NewBackendBackend  # once the plugin is installed, name its entry point: backend = "newbackend"

    def failures(self) -> Sequence[Failure]:
        return [
            ("OUT_OF_MEMORY", lambda: check(Status.OUT_OF_MEMORY, "alloc", requested=64), OutOfMemoryError),
            ("DEVICE_LOST", lambda: check(Status.DEVICE_LOST, "launch"), DeviceLostError),
            ("unknown", lambda: check(99, "launch"), LaunchError),
        ]
