"""Fixtures for many tests: distributions made on the fly, tiny models, and devices that misbehave on purpose."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bitnet_core.discovery import registry as registry_module
from bitnet_core.discovery.registry import registry
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.options import EngineOptions
from bitnet_core.hal.device import DeviceInfo
from bitnet_core.reference.describe import numpy_info
from bitnet_core.reference.device import NumpyDevice

_serial = itertools.count()  # modules of the same name would be taken from the import cache

InstallPlugin = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was measured, remembered or configured on this machine has no say in tests."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            patched.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


PLUGIN = """
import pluggy
from bitnet_core.errors import BackendUnavailableError, GpuError
from bitnet_core.hal.device import DeviceInfo, DeviceType

hookimpl = pluggy.HookimplMarker("bitnet")

class Device:
    def __init__(self, info):
        self.info = info

    def close(self):
        pass

class Backend:
    name = {name!r}
    api = {api!r}

    def devices(self):
        return [DeviceInfo({name!r}, i, f"{name} device {{i}}", DeviceType.GPU) for i in range({count})]

    def open(self, index):
        return Device(self.devices()[index])

@hookimpl
def bitnet_backend():
    return Backend()
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No BITNET_ variable of the caller, no plugin but core's own and those that a test makes, and a fresh look for
    them before and after."""
    installed = registry_module._entry_points
    monkeypatch.setattr(
        registry_module,
        "_entry_points",
        lambda: [e for e in installed() if e.value == registry_module.REFERENCE.value or e.value.startswith("plugin_")],
    )
    # each test would start a process for its plugin; test_canary asks for the real thing
    monkeypatch.setattr(registry_module, "silent_drivers", lambda backends: {})
    for name in list(os.environ):
        if name.startswith("BITNET_"):
            monkeypatch.delenv(name)
    registry.cache_clear()
    yield
    registry.cache_clear()


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlugin:
    """install_plugin(name, extra="", api=(2, 0), count=1, source=None) puts a distribution `bitnet-<name>` with one
    plugin on sys.path. `extra` is appended to the standard source, `source` replaces it."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(
        name: str, extra: str = "", *, api: object = (2, 0), count: int = 1, source: str | None = None, entry: str = ""
    ) -> Path:
        module = f"plugin_{name.replace('-', '_')}_{next(_serial)}"
        text = PLUGIN.format(name=name, api=api, count=count) if source is None else source
        (site / f"{module}.py").write_text(text + "\n" + textwrap.dedent(extra), encoding="utf-8")
        info = site / f"{module}-1.2.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bitnet-{module}\nVersion: 1.2.3\n")
        (info / "entry_points.txt").write_text(f"[bitnet.backends]\n{entry or name} = {module}\n")
        registry.cache_clear()
        return site

    return install


GOLDEN = Path(__file__).parent / "golden"


def _module(name: str) -> ModuleType:
    """A script of the golden folder, which is no package."""
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


class FaultyDevice:
    """The numpy device, seen through a filter: `info` may be changed, and `before[method]` is called with the
    method's arguments before it runs, and may raise."""

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


@pytest.fixture
def faulty() -> type[FaultyDevice]:
    return FaultyDevice


MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tiny: ModuleType) -> Iterator[MakeEngine]:
    """make_engine(style="offline", seed=0, device=None, **options): an engine on a tiny model, closed afterwards."""
    made: list[Engine] = []

    def make(style: str = "offline", seed: int = 0, device: Any = None, reopen: Any = None, **options: Any) -> Engine:
        source = tiny.TinySource(tiny.CONFIGS[style], seed)
        engine = Engine(source, device or NumpyDevice(), EngineOptions(**options), reopen=reopen)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


def run(engine: Engine) -> None:
    """Step until every sequence is done."""
    while engine.step():
        pass


@pytest.fixture
def run_all() -> Callable[[Engine], None]:
    return run
