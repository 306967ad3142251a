"""The conformance kit: shows whether a backend does what the HAL and the kernel catalogue say.

    from bitnet_hal.testing import BackendConformance

    class TestConformance(BackendConformance):
        backend = "toy"

pytest finds the kit by itself (entry point `pytest11`), so importing this package must stay cheap: the classes are
loaded when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitnet_hal.testing.suite import BackendConformance

__all__ = ["BackendConformance"]


def __getattr__(name: str) -> Any:
    if name == "BackendConformance":
        from bitnet_hal.testing.suite import BackendConformance

        return BackendConformance
    raise AttributeError(f"module {__name__} has no attribute {name}")
