"""Faulty devices, derived from the numpy device, and the kit's verdict on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from bitnet_hal.device import Device, DeviceInfo
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.reference import describe, device
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.reference.meanings import MEANINGS
from bitnet_hal.reference.plugin import NumpyBackend
from bitnet_hal.testing import BackendConformance
from bitnet_hal.testing.cases.registry import all_cases
from bitnet_hal.testing.workbench import Bench

Judge = Callable[..., str]


@pytest.fixture(autouse=True)
def stub_numpy() -> None:
    """Leave the reference backend alone, unlike the tests of discovery."""


class BackendOf(NumpyBackend):
    """A backend whose only device is made by `make`."""

    def __init__(self, make: Callable[[], Device], info: DeviceInfo | None = None) -> None:
        self.make = make
        self.info = info or describe.numpy_info()

    def devices(self) -> list[DeviceInfo]:
        return [self.info]

    def open(self, index: int) -> Device:
        super().open(index)
        return self.make()


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Return judge(device class or backend, rule, ...): the rule's failure as text, "" if it passes.

    Devices offer every optional kernel. The rule runs as in pytest, and its buffers are freed. A rule that skips fails
    the test.
    """

    optional = frozenset(spec.name for spec in CATALOGUE.values() if not spec.base)
    monkeypatch.setattr(describe, "numpy_info", lambda: replace(numpy_info(), kernels=optional))

    def judged(subject: Any, rule: str, conformance: type = BackendConformance, **case: Any) -> str:
        backend = subject if hasattr(subject, "devices") else BackendOf(subject)
        bench = Bench(backend, 0, backend.devices()[0])
        try:
            getattr(conformance(), rule)(bench, **case)
            bench.tidy()
        except pytest.skip.Exception as skipped:
            raise AssertionError(f"{rule} skipped: {skipped}") from skipped
        except (Exception, pytest.fail.Exception) as fault:  # noqa: BLE001  # whatever fails the rule in pytest
            return f"{type(fault).__name__}: {fault}"
        finally:
            if type(bench.device).close is NumpyDevice.close:
                bench.close()
        return ""

    return judged


@pytest.fixture
def kernel_verdicts(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return kernel_verdicts(kernel, fault, labels): the verdict of each case on a numpy device with a faulty
    kernel.

    The device runs fault(reference, a, p, c) as the kernel; the kit compares with the unchanged reference.
    """
    cases = {case.id: case for case in all_cases()}

    def verdicts(kernel: str, fault: Callable[..., None], labels: list[str]) -> list[str]:
        right = MEANINGS[kernel]

        def run(a: Any, p: Any, c: Any) -> None:
            fault(right, a, p, c)

        monkeypatch.setattr(device, "MEANINGS", {**MEANINGS, kernel: run})
        return [judge(NumpyDevice, "test_kernel", case=cases[f"{kernel}-{label}"]) for label in labels]

    return verdicts


@pytest.fixture
def reject(kernel_verdicts: Callable[..., list[str]]) -> Callable[..., None]:
    """Return reject(fault, kernel, rejecting, accepting): asserts that of two cases only the first notices the
    fault."""

    def rejected(fault: Callable[..., None], kernel: str, rejecting: str, accepting: str) -> None:
        plain, meant = kernel_verdicts(kernel, fault, [accepting, rejecting])
        assert plain == "", f"{kernel}-{accepting} should not notice"
        assert meant.startswith(f"AssertionError: {kernel}-{rejecting}: "), meant

    return rejected


@pytest.fixture
def backend_of() -> type[BackendOf]:
    """Return backend_of(device class, info): a backend whose only device is of that class."""
    return BackendOf


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a fault by its kernel and its function."""
    return f"{val[1]}-{val[0].__name__}" if argname == "fault" and isinstance(val, tuple) else None
