"""pytest plugin of the conformance kit.

pytest loads it in every environment that has bitnet-hal, so it imports only pytest until a conformance class is
collected.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet_hal.device import Backend
    from bitnet_hal.testing.results import Results
    from bitnet_hal.testing.speed import SpeedResult
    from bitnet_hal.testing.targets import Target
    from bitnet_hal.testing.workbench import Bench

pytest.register_assert_rewrite("bitnet_hal.testing.rules", "bitnet_hal.testing.workbench", "bitnet_hal.testing.compare")

RESULTS: pytest.StashKey[Results] = pytest.StashKey()
PERF = "--bitnet-perf"
REPORT = "--bitnet-report"
PART = "--bitnet-part"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kit's options."""
    group = parser.getgroup("bitnet", "conformance of bitnet backends")
    group.addoption("--require-device", action="store_true", help="fail instead of skipping if there is no device")
    group.addoption(
        PERF,
        nargs="?",
        const="",
        metavar="FILE",
        help="time each kernel at 2B-4T shapes instead of testing; with =FILE, write JSON too",
    )
    group.addoption(REPORT, metavar="FILE", help="write the outcome of every test as JSON")
    group.addoption(PART, metavar="N/M", type=part, help="of M parts of the kernels' cases, run the Nth (1 to M)")


def part(text: str) -> tuple[int, int]:
    """Return (N, M) of N/M. Raises ArgumentTypeError if it is not 1 <= N <= M."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ArgumentTypeError(f"{text!r} is not N/M with 1 <= N <= M")
    return int(number), int(count)


def pytest_configure(config: pytest.Config) -> None:
    """Register the kit's markers."""
    from bitnet_hal.testing.tiers import CATEGORIES, TIERS

    for marker, meaning in {**TIERS, **CATEGORIES}.items():
        config.addinivalue_line("markers", f"{marker}: rule of the conformance kit: {meaning}")
    config.addinivalue_line("markers", "bitnet_perf: a measurement, run by --bitnet-perf alone")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the measurements, or with `--bitnet-perf` the rules."""
    _mark(items)
    perf = config.getoption(PERF) is not None
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        wrong = _of_the_kit(item) and (item.get_closest_marker("bitnet_perf") is not None) is not perf
        (dropped if wrong else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _mark(items: Sequence[pytest.Item]) -> None:
    """Add the markers of its tier and category to each rule."""
    from bitnet_hal.testing.tiers import MARKERS

    for item in items:
        rules = getattr(getattr(item, "function", None), "__qualname__", "").partition(".")[0]
        for marker in MARKERS.get(rules, ()) if _of_the_kit(item) else ():
            item.add_marker(marker)


def _of_the_kit(item: pytest.Item) -> bool:
    return hasattr(getattr(item, "cls", None), "test_speed")


@cache
def _targets(cls: type) -> Sequence[Target]:
    from bitnet_hal.testing.targets import targets_of

    return targets_of(cls)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize each rule over the devices, and kernel rules over the cases of each device's kernels."""
    if "bitnet_target" not in metafunc.fixturenames or metafunc.cls is None:
        return
    from bitnet_hal.testing.targets import operands_for, part_of

    targets = _targets(metafunc.cls)
    name = next((name for name in ("kernel", "product", "case", "shape") if name in metafunc.fixturenames), None)
    if name is None:
        ids = [target.id for target in targets]
        metafunc.parametrize("bitnet_target", targets, ids=ids, indirect=True, scope="module")
        return
    number, count = metafunc.config.getoption(PART) or (1, 1)
    pairs = []
    for target in targets:
        operands = operands_for(name, target)
        chosen = part_of(operands, number, count) if name == "case" else operands
        for one in chosen:
            label = one if isinstance(one, str) else one.id
            pairs.append(pytest.param(target, one, id=f"{target.id}-{label}"))
    metafunc.parametrize(("bitnet_target", name), pairs, indirect=["bitnet_target"], scope="module")


def _results(config: pytest.Config) -> Results:
    from bitnet_hal.testing.results import Results

    return config.stash.setdefault(RESULTS, Results())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collect the outcome of every rule for `--bitnet-report`."""
    report = yield
    if item.config.getoption(REPORT) and _of_the_kit(item):
        _results(item.config).add(report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the JSON files that the options ask for."""
    from bitnet_hal.testing.results import write_json

    config = session.config
    if path := config.getoption(REPORT):
        write_json(path, _results(config).document())
    if path := config.getoption(PERF):
        write_json(path, _results(config).speed_document())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of `--bitnet-perf`."""
    if config.getoption(PERF) is not None:
        terminalreporter.section("speed of kernels")
        for line in _results(config).speed_lines():
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def bitnet_target(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Return the bench of one device; it is closed at the end of the module."""
    from bitnet_hal.testing.workbench import Bench

    target: Target = request.param
    if target.info is None:
        if request.config.getoption("--require-device"):
            pytest.fail(target.absent, pytrace=False)
        pytest.skip(target.absent)
    bench = Bench(target.backend, target.index, target.info)
    yield bench
    bench.close()


@pytest.fixture
def bench(bitnet_target: Bench, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Return the bench of the device under test; a rule's buffers are freed after it."""
    info = bitnet_target.info
    request.node.user_properties.append(("device", info.request))
    _results(request.config).devices[info.request] = info
    yield bitnet_target
    bitnet_target.tidy()


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return the backend that the conformance class names."""
    from bitnet_hal.testing.targets import backend_of

    return backend_of(request.cls)


@pytest.fixture
def entry_point(request: pytest.FixtureRequest) -> tuple[str, str] | None:
    """Return (name, module) of the backend's entry point; None for a backend given as an object."""
    from bitnet_hal.testing.targets import entry_point_of

    return entry_point_of(request.cls)


@pytest.fixture
def keep_speed(bench: Bench, request: pytest.FixtureRequest) -> Callable[[SpeedResult], None]:
    """Return a function that adds a measurement to the table."""
    return _results(request.config).speeds.setdefault(bench.info.request, []).append
