"""Find the backend and devices of a conformance class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from zlib import crc32

import pytest

from bitnet_hal.device import Backend, DeviceInfo
from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.hooks import ENTRY_POINT_GROUP
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.testing.cases.case import Case
from bitnet_hal.testing.cases.registry import all_cases
from bitnet_hal.testing.cases.tuned import products
from bitnet_hal.testing.speed import Shape, shapes


@dataclass(frozen=True)
class Target:
    """A device to test, or the reason that there is none."""

    backend: Backend
    index: int = -1
    info: DeviceInfo | None = None
    absent: str = ""

    @property
    def id(self) -> str:
        """Return the pytest id."""
        return self.info.request if self.info else f"{self.backend.name}:none"


def entry_point_of(cls: type) -> tuple[str, str] | None:
    """Return (name, module) of the entry point that a class names; None if `backend` is an object.

    Raises pytest.UsageError if no such entry point is installed.
    """
    named = getattr(cls, "backend", None)
    if not isinstance(named, str):
        return None
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=named):
        return entry.name, entry.module
    installed = ", ".join(sorted(entry_points(group=ENTRY_POINT_GROUP).names)) or "none"
    raise pytest.UsageError(
        f"{cls.__name__}: no installed distribution has an entry point {named!r} in {ENTRY_POINT_GROUP} "
        f"(installed: {installed}). Install the plugin, or set `backend` to a Backend."
    )


def backend_of(cls: type) -> Backend:
    """Return the backend that a class names or holds. Raises pytest.UsageError if it sets none."""
    if entry := entry_point_of(cls):
        (found,) = list(entry_points(group=ENTRY_POINT_GROUP, name=entry[0]))[:1]
        made: Backend = found.load().bitnet_backend()
        return made
    given = getattr(cls, "backend", None)
    if given is None:
        raise pytest.UsageError(f'{cls.__name__} must set `backend`, for example backend = "opencl"')
    backend: Backend = given() if isinstance(given, type) or not hasattr(given, "devices") else given
    return backend


def targets_of(cls: type) -> Sequence[Target]:
    """Return every device of the class's backend, or one target with the reason that there is none."""
    backend = backend_of(cls)
    try:
        infos = backend.devices()
    except BackendUnavailableError as exc:
        return [Target(backend, absent=str(exc))]
    if not infos:
        return [Target(backend, absent=f"{backend.name} lists no device")]
    return [Target(backend, info.index, info) for info in infos]


def operands_for(name: str, target: Target) -> Sequence[str | Case | Shape]:
    """Return the values of the fixture `name` for a device: its kernels, the products among them, their cases, or the
    shapes to time."""
    optional = target.info.kernels if target.info else frozenset()
    kernels = [name for name, spec in CATALOGUE.items() if spec.base or name in optional]
    if name == "kernel":
        return kernels
    if name == "product":
        return [one for one in products() if one in kernels]
    return [one for one in (all_cases() if name == "case" else shapes()) if one.kernel in kernels]


def part_of(operands: Sequence[str | Case | Shape], number: int, count: int) -> list[Case]:
    """Return the Nth of `count` parts of the cases, number 1 to count: an equal share of each kernel's, at least one in
    the first part. Cases of a kernel are dealt in the order of a hash, as neighbours differ in one constant."""
    cases = [one for one in operands if isinstance(one, Case)]
    dealt: dict[str, int] = defaultdict(int)
    chosen = set()
    for case in sorted(cases, key=lambda case: crc32(case.id.encode())):
        if dealt[case.kernel] % count == number - 1:
            chosen.add(case.id)
        dealt[case.kernel] += 1
    return [case for case in cases if case.id in chosen]
