"""Plugins that fail are put in quarantine, each with its stage and reason; the others work."""

from __future__ import annotations

import logging

import pytest
from bitnet_core.errors import BackendIncompatibleError, BackendUnavailableError
from bitnet_core.hal.discovery import Stage, registry

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
        ({"api": (1, 99)}, Stage.API, "version 1.99 of the HAL, this core has 1.1"),
        ({"api": (2, 0)}, Stage.API, "version 2.0"),
        ({"api": (0, 9)}, Stage.API, "version 0.9"),
        ({"api": "1.0"}, Stage.API, "ValueError"),
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
    assert len([record for record in caplog.records if "left out" in record.message]) == 1


def test_devices_that_lie_about_their_backend_are_refused(install_plugin) -> None:
    install_plugin("vendor", "Backend.devices = lambda self: [DeviceInfo('cuda', 0, 'x', DeviceType.GPU)]")
    assert registry().devices("vendor") == ()
    assert "calls itself 'cuda:0'" in registry().quarantined[0].reason


def test_two_distributions_with_one_name(install_plugin) -> None:
    install_plugin("vendor")
    install_plugin("vendor")
    found = registry()
    assert list(found.backends) == ["numpy", "vendor"]
    assert "the name 'vendor' is taken by bitnet-plugin_vendor_" in found.quarantined[0].reason


def test_an_older_minor_is_accepted(install_plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitnet_core.hal.discovery.API_VERSION", (1, 5))
    install_plugin("vendor", api=(1, 4))
    assert "vendor" in registry().backends
