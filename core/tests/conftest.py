"""Fixtures for many tests: those of bitnet-hal's, tiny models, and `bitnet` in the test process."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bitnet_core.cli.app import main
from bitnet_core.engine.engine import Engine
from bitnet_core.options.engine import EngineOptions
from bitnet_hal.device import DeviceInfo, MemoryKind
from bitnet_hal.errors import OutOfMemoryError
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice


def _of_hal() -> ModuleType:
    """Import the conftest of bitnet-hal's tests."""
    path = Path(__file__).parents[2] / "hal" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("hal_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_hal = _of_hal()
own_folders, clean_environment, install_plugin = _hal.own_folders, _hal.clean_environment, _hal.install_plugin

GOLDEN = Path(__file__).parent / "golden"


def _module(name: str) -> ModuleType:
    """Import a script of the golden folder, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, GOLDEN / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = sys.modules.setdefault(name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """The module tiny_models."""
    return _module("tiny_models")


@pytest.fixture(scope="session")
def float_model() -> ModuleType:
    """The module float_model."""
    return _module("float_model")


@pytest.fixture(scope="session")
def float64_model() -> Any:
    """The class FloatModel: logits in float64, with activations that are not rounded."""
    return _module("float64_model").FloatModel


@pytest.fixture(scope="session")
def maple_model() -> ModuleType:
    """The module maple_model."""
    return _module("maple_model")


class FaultyDevice:
    """The numpy device behind a filter: `info` can be changed, and `before[method]` is called with the method's
    arguments before it runs, and may raise."""

    def __init__(self, **info: Any) -> None:
        self.info: DeviceInfo = replace(numpy_info(), **info)
        self.inner = NumpyDevice(self.info)
        self.before: dict[str, Callable[..., None]] = {}
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if not callable(method):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            if name in self.before:
                self.before[name](*args, **kwargs)
            return method(*args, **kwargs)

        return call


class CappedDevice(FaultyDevice):
    """A FaultyDevice with `cap` bytes of memory: an allocation counts what is left. peak: most bytes in use so far."""

    def __init__(self, cap: int, **info: Any) -> None:
        super().__init__(**info)
        self.cap, self.peak = cap, 0
        self.before["alloc"] = self._check

    @property
    def used(self) -> int:
        return sum(buffer.nbytes for buffer in self.inner._buffers.values() if buffer.kind is MemoryKind.DEVICE)

    def free_memory(self) -> int:
        return self.cap - self.used

    def _check(self, nbytes: int, *_: Any) -> None:
        if self.used + nbytes > self.cap:
            raise OutOfMemoryError("full", requested=nbytes, free=self.free_memory(), backend=self.info.backend)
        self.peak = max(self.peak, self.used + nbytes)


@pytest.fixture
def capped() -> type[CappedDevice]:
    return CappedDevice


@pytest.fixture
def faulty() -> type[FaultyDevice]:
    return FaultyDevice


MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tiny: ModuleType) -> Iterator[MakeEngine]:
    """make_engine(style="offline", seed=0, device=None, reopen=None, drafter=None, **options): an engine on a tiny
    model, closed afterwards."""
    made: list[Engine] = []

    def make(
        style: str = "offline",
        seed: int = 0,
        device: Any = None,
        reopen: Any = None,
        drafter: Any = None,
        **options: Any,
    ) -> Engine:
        source = tiny.TinySource(tiny.CONFIGS[style], seed)
        draft_model = (lambda: drafter) if drafter else None
        engine = Engine(
            source, device or NumpyDevice(), EngineOptions(**options), reopen=reopen, draft_model=draft_model
        )
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


def run(engine: Engine) -> None:
    """Step until every request is finished."""
    while engine.step():
        pass


@pytest.fixture
def run_all() -> Callable[[Engine], None]:
    return run


@dataclass(frozen=True)
class Result:
    """The end of a command: its exit code and output."""

    code: int
    out: str
    err: str


Bitnet = Callable[..., Result]


@pytest.fixture
def bitnet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bitnet:
    """bitnet(*arguments, stdin=b"") runs the command line as a shell would."""

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["bitnet", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        return Result(int(caught.value.code or 0), captured.out, captured.err)

    return run
