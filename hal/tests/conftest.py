"""Fixtures for many tests, also core's: distributions made on the fly, and devices that misbehave on purpose."""

from __future__ import annotations

import os
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bitnet_hal.discovery import registry as registry_module
from bitnet_hal.discovery.registry import registry

InstallPlugin = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use empty cache and configuration folders, so that tests ignore this machine's."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            patched.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


PLUGIN = """
import pluggy
from bitnet_hal.errors import BackendUnavailableError, GpuError
from bitnet_hal.device import DeviceInfo, DeviceType

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
    # each test would start a process for its plugin; test_child asks for the real thing
    monkeypatch.setattr(registry_module, "unresponsive_drivers", lambda backends: {})
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
        # a module of a name that was used before would be taken from the import cache
        module = f"plugin_{name.replace('-', '_')}_{uuid.uuid4().hex}"
        text = PLUGIN.format(name=name, api=api, count=count) if source is None else source
        (site / f"{module}.py").write_text(text + "\n" + textwrap.dedent(extra), encoding="utf-8")
        info = site / f"{module}-1.2.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bitnet-{module}\nVersion: 1.2.3\n")
        (info / "entry_points.txt").write_text(f"[bitnet.backends]\n{entry or name} = {module}\n")
        registry.cache_clear()
        return site

    return install
