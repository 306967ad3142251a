"""Plugins that fail are quarantined with stage and reason; the others work."""

from __future__ import annotations

import logging
import sys

import pytest
from bitnet_hal.discovery.quarantine import Stage
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.selection import open_device
from bitnet_hal.errors import BackendIncompatibleError, BackendUnavailableError

BROKEN_IMPORT = "raise ImportError('libvendor.so.1 is missing')"
WRONG_SIGNATURE = """
import pluggy
@pluggy.HookimplMarker("bitnet")
def bitnet_backend(vendor):
    return None
"""
MISSPELLED = """
import pluggy
@pluggy.HookimplMarker("bitnet")
def bitnet_backnd():
    return None
"""
EXITS = "raise SystemExit(3)"
ABSENT_DRIVER = """
    def absent(self):
        raise BackendUnavailableError("no libvendor.so.1", backend=self.name, hint="Install vendor-driver")
    Backend.devices = absent
"""
CRASHES_ON_BUILD = """
    @hookimpl
    def bitnet_backend():
        raise KeyError("vendor")
"""


@pytest.mark.parametrize(
    ("options", "stage", "reason"),
    [
        ({"source": BROKEN_IMPORT}, Stage.IMPORT, "ImportError: libvendor.so.1 is missing"),
        ({"source": "def ("}, Stage.IMPORT, "SyntaxError"),
        ({"source": EXITS}, Stage.IMPORT, "SystemExit: 3"),
        ({"source": WRONG_SIGNATURE}, Stage.HOOKS, "vendor"),
        ({"source": MISSPELLED}, Stage.HOOKS, "bitnet_backnd"),
        ({"source": "x = 1"}, Stage.HOOKS, "implements no bitnet hook"),
        ({"extra": CRASHES_ON_BUILD}, Stage.BACKEND, "KeyError: 'vendor'"),
        ({"entry": "other"}, Stage.NAME, "calls itself 'bad', not 'other'"),
        ({"api": (2, 99)}, Stage.API, "version 2.99 of the HAL, bitnet-hal has 2.1"),
        ({"api": (3, 0)}, Stage.API, "version 3.0"),
        ({"api": (1, 1)}, Stage.API, "it was written for version 1.1 of the HAL, bitnet-hal has 2.1"),
        ({"api": "1.0"}, Stage.API, "not a (major, minor)"),
    ],
)
def test_a_bad_plugin_is_quarantined_and_the_good_one_works(install_plugin, options, stage, reason) -> None:
    install_plugin("bad", **options)
    install_plugin("good")
    found = registry()
    assert [(q.stage, q.version) for q in found.quarantined] == [(stage, "1.2.3")]
    assert reason in found.quarantined[0].reason
    assert list(found.backends) == ["numpy", "good"]
    assert [info.request for info in found.devices("good")] == ["good:0"]
    assert isinstance(found.quarantined[0].as_error(), BackendIncompatibleError)


def test_a_plugin_that_failed_validation_is_unregistered(install_plugin) -> None:
    install_plugin("bad", source=WRONG_SIGNATURE)
    assert "bad" not in [name for name, _, _ in registry().hook_functions("bitnet_backend")]


def test_an_absent_driver_is_a_stage_of_its_own(install_plugin, caplog: pytest.LogCaptureFixture) -> None:
    install_plugin("vendor", ABSENT_DRIVER)
    caplog.set_level(logging.INFO)
    found = registry()
    assert found.quarantined == []
    assert found.devices("vendor") == ()
    assert found.devices("vendor") == ()
    failure = found.failure("vendor")
    assert failure is not None
    assert (failure.stage, failure.fix) == (Stage.DRIVER, "Install vendor-driver")
    assert isinstance(failure.as_error(), BackendUnavailableError)
    assert len([record for record in caplog.records if "is ignored" in record.message]) == 1


def test_a_plugin_gets_one_warning_however_much_is_wrong(install_plugin, caplog: pytest.LogCaptureFixture) -> None:
    devices = "[DeviceInfo('cuda', index, 'card', DeviceType.GPU) for index in range(500)]"
    install_plugin("vendor", f"Backend.devices = lambda self: {devices}")
    caplog.set_level(logging.INFO)
    assert registry().devices("vendor") == ()
    said = [record.levelname for record in caplog.records if "is ignored" in record.message]
    assert len(said) == 500
    assert said.count("WARNING") == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("'cuda', 0, 'x', DeviceType.GPU", "calls itself 'cuda:0'"),
        ("'vendor', 7, 'x', DeviceType.GPU", "two devices call themselves 'vendor:7'"),
        ("'vendor', 0, ' ', DeviceType.GPU", "it has no name"),
    ],
)
def test_a_device_that_cannot_be_is_left_out_alone(install_plugin, bad: str, reason: str) -> None:
    sound = "DeviceInfo('vendor', 7, 'card', DeviceType.GPU)"
    install_plugin("vendor", f"Backend.devices = lambda self: [{sound}, DeviceInfo({bad})]")
    assert [info.request for info in registry().devices("vendor")] == ["vendor:7"]
    (left_out,) = registry().quarantined
    assert left_out.stage is Stage.DEVICES
    assert reason in left_out.reason


def test_the_index_of_a_device_is_its_own(install_plugin) -> None:
    """A plugin that skips the card at ordinal 0 still opens the one at ordinal 1."""
    install_plugin(
        "vendor",
        """
        from dataclasses import replace
        from bitnet_hal.reference.describe import numpy_info
        from bitnet_hal.reference.device import NumpyDevice
        infos = {1: replace(numpy_info(), backend="vendor", index=1, name="newer card")}
        Backend.devices = lambda self: list(infos.values())
        Backend.open = lambda self, index: NumpyDevice(infos[index])
        """,
    )
    device, summary = open_device("vendor:1")
    assert (device.info.name, summary.selected.request) == ("newer card", "vendor:1")


def test_names_that_core_does_not_know_are_ignored(install_plugin, caplog: pytest.LogCaptureFixture) -> None:
    install_plugin(
        "vendor",
        "Backend.devices = lambda self: [DeviceInfo('vendor', 0, 'card', DeviceType.GPU, "
        "kernels=frozenset({'top_k', 'matmul_fp4'}), features=frozenset({'telepathy'}))]",
    )
    with caplog.at_level(logging.DEBUG):
        assert len(registry().devices("vendor")) == 1
    said = [record.message for record in caplog.records if "does not know" in record.message]
    assert said == [
        "vendor:0 names kernels that bitnet-hal does not know: matmul_fp4",
        "vendor:0 names features that bitnet-hal does not know: telepathy",
    ]


def test_drivers_are_asked_at_the_same_time_but_for_one_that_two_backends_share(
    install_plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuda and opencl run in parallel; vulkan and webgpu, which may share a driver, do not. Reports keep the order of
    names."""
    monkeypatch.setattr("bitnet_hal.discovery.registry.unresponsive_drivers", lambda _: {})
    monkeypatch.setattr("builtins.inside", [], raising=False)
    asked = """
        import time
        def devices(self):
            inside.append(self.name)
            met, limit = set(inside), time.monotonic() + {seconds}
            while time.monotonic() < limit and not {{"cuda", "opencl"}} <= met:
                met |= set(inside)
                time.sleep(0.001)
            inside.remove(self.name) if self.name in ("vulkan", "webgpu") else None
            raise BackendUnavailableError(" ".join(sorted(met)), backend=self.name)
        Backend.devices = devices
        """
    names = ["cuda", "opencl", "vulkan", "webgpu"]
    for name in names:
        install_plugin(name, asked.format(seconds=10 if name in ("cuda", "opencl") else 0.1))
    registry().probe(names)
    told = {entry.name: set(entry.reason.split()) for entry in registry().quarantined}
    assert list(told) == names
    assert {"cuda", "opencl"} <= told["cuda"] & told["opencl"]
    assert "webgpu" not in told["vulkan"]
    assert "vulkan" not in told["webgpu"]


def test_a_later_backend_s_modules_are_imported_while_an_earlier_one_is_asked(
    install_plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.imported", [], raising=False)
    monkeypatch.delitem(sys.modules, "wgpu", raising=False)
    site = install_plugin("webgpu")
    (site / "wgpu.py").write_text("imported.append('wgpu')\nraise RuntimeError('which its backend tells')")
    waits = """
        import time
        def devices(self):
            limit = time.monotonic() + 10
            while time.monotonic() < limit and not imported:
                time.sleep(0.001)
            raise BackendUnavailableError(" ".join(set(imported)), backend=self.name)
        Backend.devices = devices
        """
    install_plugin("vulkan", waits)
    registry().probe(["vulkan", "webgpu"])
    assert [(entry.name, entry.reason) for entry in registry().quarantined] == [("vulkan", "wgpu")]


def test_two_distributions_with_one_name(install_plugin) -> None:
    install_plugin("vendor")
    install_plugin("vendor")
    found = registry()
    assert list(found.backends) == ["numpy", "vendor"]
    assert "the name 'vendor' is taken by bitnet-plugin_vendor_" in found.quarantined[0].reason


def test_an_older_minor_is_accepted(install_plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitnet_hal.discovery.claims.API_VERSION", (2, 5))
    install_plugin("vendor", api=(2, 4))
    assert "vendor" in registry().backends
