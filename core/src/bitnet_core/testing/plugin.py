"""pytest plugin of the conformance kit.

It is loaded in every pytest run of an environment that has bitnet-core, so it imports nothing but pytest until a
conformance class is collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet_core.hal.device import Backend
    from bitnet_core.testing.bench import Bench
    from bitnet_core.testing.targets import Target

pytest.register_assert_rewrite("bitnet_core.testing.areas", "bitnet_core.testing.bench", "bitnet_core.testing.compare")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the kit."""
    group = parser.getgroup("bitnet", "conformance of bitnet backends")
    group.addoption("--require-device", action="store_true", help="fail, rather than skip, where a device is absent")


@cache
def _targets(cls: type) -> Sequence[Target]:
    from bitnet_core.testing.targets import targets_of

    return targets_of(cls)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each rule on each device, and kernel rules on each case that concerns the device."""
    if "bitnet_target" not in metafunc.fixturenames or metafunc.cls is None:
        return
    targets = _targets(metafunc.cls)
    if "case" not in metafunc.fixturenames:
        ids = [target.id for target in targets]
        metafunc.parametrize("bitnet_target", targets, ids=ids, indirect=True, scope="module")
        return
    from bitnet_core.testing.cases.registry import cases_for

    pairs = [
        pytest.param(target, case, id=f"{target.id}-{case.id}")
        for target in targets
        for case in cases_for(target.info.kernels if target.info else frozenset())
    ]
    metafunc.parametrize(("bitnet_target", "case"), pairs, indirect=["bitnet_target"], scope="module")


@pytest.fixture(scope="module")
def bitnet_target(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """The bench of one device, closed at the end of the module."""
    from bitnet_core.testing.bench import Bench

    target: Target = request.param
    if target.info is None:
        if request.config.getoption("--require-device"):
            pytest.fail(target.absent, pytrace=False)
        pytest.skip(target.absent)
    bench = Bench(target.backend, target.index, target.info)
    yield bench
    bench.close()


@pytest.fixture
def bench(bitnet_target: Bench) -> Iterator[Bench]:
    """The device under test; buffers of a rule are freed after it."""
    yield bitnet_target
    bitnet_target.tidy()


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    """The backend that the conformance class names."""
    from bitnet_core.testing.targets import backend_of

    return backend_of(request.cls)


@pytest.fixture
def entry_point(request: pytest.FixtureRequest) -> tuple[str, str] | None:
    """(name, module) of the backend's entry point; None for a backend given as an object."""
    from bitnet_core.testing.targets import entry_point_of

    return entry_point_of(request.cls)
