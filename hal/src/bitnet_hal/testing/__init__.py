"""The conformance kit: rules that a backend must pass to implement the HAL and the kernel catalogue.

    from bitnet_hal.testing import BackendConformance

    class TestConformance(BackendConformance):
        backend = "toy"

pytest loads this package in every run (entry point `pytest11`), so importing it must stay cheap: classes are imported
on first use.
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
