"""Faulty devices, errors and plugins: the rule meant for each fault rejects it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bitnet_hal.device import Device, DeviceInfo, Tuning, View
from bitnet_hal.errors import (
    BitnetError,
    GpuError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyBuffer, NumpyDevice, NumpyKernel
from bitnet_hal.reference.plugin import NumpyBackend
from bitnet_hal.testing import BackendConformance
from bitnet_hal.testing.tiers import CATEGORIES, MARKERS, TIERS

Judge = Callable[..., str]


class AnyConstantCompiles(NumpyDevice):
    def compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> NumpyKernel:
        allowed = {name: values[0] for name, values in spec.constants.items()}
        return super().compile(
            spec, {**allowed, **{n: v for n, v in constants.items() if v in spec.constants[n]}}, tuning
        )


class UnknownKernelIsAValueError(NumpyDevice):
    def compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> NumpyKernel:
        if spec.name not in CATALOGUE:
            raise ValueError(spec.name)
        return super().compile(spec, constants, tuning)


class LacksInt8Cache(NumpyDevice):
    def compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> NumpyKernel:
        if constants.get("KV") == 2:
            raise UnsupportedError("no int8 cache")
        return super().compile(spec, constants, tuning)


class LacksPrompts(NumpyDevice):
    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        return Tuning(dict.fromkeys(spec.tuning, int(params["rows"])))

    def compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> NumpyKernel:
        if tuning.tile.get("TILE_T", 0) > 100:
            raise UnsupportedError("too many rows")
        return super().compile(spec, constants, tuning)


class ForgetsItsConstants(NumpyDevice):
    def compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> NumpyKernel:
        return super().compile(spec, {**constants, "ADD": 0}, tuning)


class FreedBuffersStayUsable(NumpyDevice):
    def free(self, buffer: Any) -> None:
        if not isinstance(buffer, NumpyBuffer):
            raise ValueError("not mine")


class ClosesOnce(NumpyDevice):
    def close(self) -> None:
        if self.__dict__.setdefault("closed", False):
            raise RuntimeError("closed twice")
        self.__dict__["closed"] = True
        super().close()


class CloseDoesNothing(NumpyDevice):
    kept: list[Any] = []  # noqa: RUF012  # the fault: memory that outlives the device

    def close(self) -> None:
        self.kept.append(self._buffers)


class SharedState(NumpyDevice):
    """Devices share one set of buffers, and each frees all of them on close."""

    shared: dict[int, NumpyBuffer] = {}  # noqa: RUF012  # the fault

    def __init__(self) -> None:
        super().__init__()
        self._buffers = self.shared


class DescribesItselfAnew(NumpyDevice):
    def __init__(self) -> None:
        super().__init__(replace(numpy_info(), name="something else"))


MUTANTS: list[tuple[type, str, dict[str, Any]]] = [
    (AnyConstantCompiles, "test_semantic_constants_are_checked", {"constants": {"ADD": 2}}),
    (AnyConstantCompiles, "test_semantic_constants_are_checked", {"constants": {}}),
    (UnknownKernelIsAValueError, "test_a_kernel_outside_the_catalogue_is_unsupported", {}),
    (LacksInt8Cache, "test_kernel_is_offered", {"kernel": "attention"}),
    (LacksPrompts, "test_kernel_is_offered", {"kernel": "matmul_ternary"}),
    (ForgetsItsConstants, "test_a_compiled_kernel_knows_what_it_is", {}),
    (FreedBuffersStayUsable, "test_a_freed_buffer_cannot_be_used", {}),
    (ClosesOnce, "test_a_device_may_be_closed_twice", {}),
    (CloseDoesNothing, "test_closing_gives_everything_back", {}),
    (SharedState, "test_two_devices_at_once", {}),
    (DescribesItselfAnew, "test_info_is_sound", {}),
]


@pytest.mark.parametrize(("device", "rule", "case"), MUTANTS, ids=[f"{d.__name__}-{r}" for d, r, _ in MUTANTS])
def test_a_faulty_device_is_rejected(device: type, rule: str, case: dict[str, Any], judge: Judge) -> None:
    assert judge(NumpyDevice, rule, **case) == ""
    assert judge(device, "test_round_trip", size=64) == ""
    assert judge(device, rule, **case)


@pytest.mark.parametrize(
    "wrong",
    [
        {"alignment": 48},
        {"alignment": 8192},
        {"alignment": 2},
        {"max_grid": (-1, 0, 0)},
        {"kernels": frozenset({"rms_norm"})},
        {"name": ""},
        {"backend": "nump"},
        {"total_memory": -1},
    ],
    ids=str,
)
def test_unsound_info_is_rejected(wrong: dict[str, Any], judge: Judge, backend_of: Callable[..., Any]) -> None:
    info = replace(numpy_info(), **wrong)
    assert judge(backend_of(lambda: NumpyDevice(info), info), "test_info_is_sound")


class ListsAnew(NumpyBackend):
    """A backend that lists another order or another device at every call."""

    def __init__(self) -> None:
        self.calls = 0

    def devices(self) -> list[DeviceInfo]:
        self.calls += 1
        return [replace(numpy_info(), name=f"device {self.calls}")]


class OpensAnything(NumpyBackend):
    def open(self, index: int) -> Device:
        return super().open(0)


class RaisesIndexError(NumpyBackend):
    def open(self, index: int) -> Device:
        return [super().open(0)][index]


@pytest.mark.parametrize(
    ("backend", "rule"),
    [
        (ListsAnew, "test_listing_devices_is_repeatable"),
        (OpensAnything, "test_opening_a_device_that_is_not_there"),
        (RaisesIndexError, "test_opening_a_device_that_is_not_there"),
    ],
)
def test_a_faulty_backend_is_rejected(backend: type, rule: str, judge: Judge) -> None:
    assert judge(NumpyBackend(), rule) == ""
    assert judge(backend(), rule)


def raising(error: BitnetError) -> Callable[..., object]:
    """Return a call that raises `error`."""

    def call(*_: object) -> object:
        raise error

    return call


SOUND = {"code": "X_BAD (-5)", "operation": "launch", "hint": "Do less"}


@pytest.mark.parametrize(
    "compile_broken",
    [
        lambda self, device: None,
        raising(KernelCompileError("no", kernel="rms_norm", log=" ")),
        raising(KernelCompileError("no", kernel="", log="line 3: no such thing")),
        raising(LaunchError("no")),
    ],
    ids=["swallowed", "without-log", "without-name", "wrong-class"],
)
def test_a_faulty_compile_error_is_rejected(compile_broken: Callable[..., object], judge: Judge) -> None:
    sound = raising(KernelCompileError("no", kernel="rms_norm", log="line 3: no such thing"))
    rule = "test_a_source_that_does_not_compile_gives_the_log"
    for hook, accepted in ((sound, True), (compile_broken, False)):
        conformance = type("Conformance", (BackendConformance,), {"compile_broken_source": hook})
        assert (judge(NumpyDevice, rule, conformance) == "") is accepted


@pytest.mark.parametrize(
    "error",
    [
        GpuError("no", **SOUND),
        OutOfMemoryError("no", requested=1, **SOUND),
        LaunchError("no", **{**SOUND, "code": ""}),
        LaunchError("no", **{**SOUND, "hint": ""}),
        LaunchError("no", **{**SOUND, "operation": ""}),
        None,
    ],
    ids=["base-class", "wrong-class", "no-code", "no-hint", "no-operation", "swallowed"],
)
def test_a_faulty_error_table_is_rejected(error: GpuError | None) -> None:
    def rule(call: Callable[..., object]) -> None:
        failures = [("X_BAD", call, LaunchError)]
        conformance = type("Conformance", (BackendConformance,), {"failures": lambda self: failures})
        conformance().test_native_failures_have_class_code_and_hint()

    rule(raising(LaunchError("no", **SOUND)))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        rule(raising(error) if error else lambda: None)


PLUGIN = """
{imports}
import pluggy
hookimpl = pluggy.HookimplMarker("bitnet")

class Backend:
    name = "toy"
    api = {api}
    def devices(self):
        return []

@hookimpl
def bitnet_backend():
    return Backend()
"""


@pytest.mark.parametrize(
    ("rule", "imports", "api"),
    [
        ("test_importing_loads_no_driver", "import numpy", "(2, 0)"),
        ("test_importing_loads_no_driver", "from bitnet_hal.reference import device", "(2, 0)"),
        ("test_the_version_is_a_literal", "from bitnet_hal.version import API_VERSION", "API_VERSION"),
        ("test_the_version_is_a_literal", "import bitnet_hal.version as d", "d.API_VERSION"),
        ("test_the_version_is_accepted", "", "(3, 0)"),
        ("test_the_version_is_accepted", "", "(2, 99)"),
        ("test_the_name_is_the_entry_points", "", "(2, 0)"),
        ("test_the_rank_is_a_number", "", "(2, 0)\n    rank = 'high'"),
    ],
)
def test_a_faulty_plugin_is_rejected(
    rule: str, imports: str, api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def verdict(module: str, imports: str, api: str, name: str) -> str:
        (tmp_path / f"{module}.py").write_text(PLUGIN.format(imports=imports, api=api))
        backend = __import__(module).bitnet_backend()
        operands = {"entry_point": (name, module)} if rule.endswith(("driver", "points")) else {}
        try:
            getattr(BackendConformance(), rule)(backend, **operands)
        except AssertionError as fault:
            return str(fault)
        finally:
            del sys.modules[module]
        return ""

    assert verdict("sound_plugin", "", "(2, 0)", "toy") == ""
    assert verdict("faulty_plugin", imports, api, "other")


def test_views_of_a_dead_buffer_are_refused() -> None:
    """The numpy device, from which all faulty devices derive, obeys the rule."""
    device = NumpyDevice()
    buffer = device.alloc(8)
    device.free(buffer)
    with pytest.raises(ValueError):
        device.download(View(buffer, 0, 8), memoryview(bytearray(8)))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("bitnet_hal.reference.plugin", ""),
        ("bitnet_other.plugin", "no line of bitnet_other names the device"),
    ],
)
def test_a_silent_plugin_is_rejected(judge: Judge, module: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    found = judge(NumpyDevice, "test_the_log_says_what_happens", caplog=caplog, entry_point=("numpy", module))
    assert (message in found) if message else found == ""


def test_every_rule_has_a_tier_and_a_category() -> None:
    rules = {
        kind.__name__ for kind in BackendConformance.__mro__ if any(name.startswith("test_") for name in vars(kind))
    }
    assert rules <= set(MARKERS)
    assert {tier for tier, _ in MARKERS.values()} == set(TIERS)
    assert {category for _, category in MARKERS.values()} == set(CATEGORIES)


@pytest.mark.parametrize(("marker", "rule"), [("tier1", "test_the_version_is_accepted"), ("resource", "test_copy")])
def test_markers_select_rules(marker: str, rule: str) -> None:
    file = Path(__file__).parents[2] / "reference" / "test_conformance.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        marker,
        "-p",
        "no:cacheprovider",
        str(file),
    ]
    shown = subprocess.run(command, capture_output=True, text=True).stdout
    assert rule in shown
    assert "test_every_replay_runs_again" not in shown
