"""The kit under pytest: options, absent devices, reports and speeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest
from bitnet_hal.reference.plugin import NumpyBackend
from bitnet_hal.testing.cases.registry import all_cases
from bitnet_hal.testing.plugin import part
from bitnet_hal.testing.speed import CONTEXT, Shape, measure, shapes
from bitnet_hal.testing.targets import part_of
from bitnet_hal.testing.workbench import Bench

ADOPTED = """
from bitnet_hal.reference.plugin import NumpyBackend
from bitnet_hal.testing import BackendConformance

class TestHere(BackendConformance):
    backend = NumpyBackend

    def test_info_is_sound(self, bench):
        assert bench.info.name == "another", "a failing rule"
"""
ABSENT = """
from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.testing import BackendConformance

class Absent:
    name = "absent"
    api = (2, 0)

    def devices(self):
        raise BackendUnavailableError("libabsent.so is not installed", backend="absent", hint="Install it")

class TestAbsent(BackendConformance):
    backend = Absent
"""
RULES = "test_info or test_copy or embed_rows-t or source_that or test_the_version"


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a subprocess on a module with `source`."""
    (folder / "test_adopted.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "bitnet_hal.testing.plugin", "-k", RULES, *options]
    alone = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # other plugins take seconds to load
    return subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, timeout=120, check=False)


def test_parts_hold_each_case_once(tmp_path: Path) -> None:
    def cases(text: str) -> set[str]:
        done = run(tmp_path, ADOPTED, f"--bitnet-part={text}", "--collect-only", "-k", "test_kernel and embed_rows")
        return {line for line in done.stdout.splitlines() if "test_kernel[" in line}

    first, second = cases("1/2"), cases("2/2")
    assert first
    assert second
    assert not first & second
    assert first | second == cases("1/1")


def test_the_first_part_has_a_case_of_each_kernel() -> None:
    cases = all_cases()
    parts = [part_of(cases, number, 4) for number in (1, 2, 3, 4)]
    assert sorted(case.id for part in parts for case in part) == sorted(case.id for case in cases)
    assert {case.kernel for case in parts[0]} == {case.kernel for case in cases}
    assert max(map(len, parts)) <= min(map(len, parts)) + len({case.kernel for case in cases})


@pytest.mark.parametrize("text", ["3/2", "0/2", "2", "one/2"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"N/M"):
        part(text)


def test_a_report_tells_what_passed_failed_and_skipped(tmp_path: Path) -> None:
    done = run(tmp_path, ADOPTED, "--bitnet-report=report.json")
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["totals"] == {"failed": 1, "passed": 11, "skipped": 1}
    assert [device["device"] for device in report["devices"]] == ["numpy:0"]
    outcomes = {test["test"]: test for test in report["tests"]}
    failed = outcomes["test_info_is_sound[numpy:0]"]
    assert failed["outcome"] == "failed"
    assert "a failing rule" in failed["reason"]
    assert failed["device"] == "numpy:0"
    skipped = outcomes["test_a_source_that_does_not_compile_gives_the_log[numpy:0]"]
    assert "compile_broken_source" in skipped["reason"]
    assert set(report["versions"]) == {"bitnet-hal", "python", "platform", "numpy"}


def test_an_absent_device_skips_with_its_reason_or_fails_if_required(tmp_path: Path) -> None:
    skipping = run(tmp_path, ABSENT, "-rs")
    assert skipping.returncode == 0, skipping.stdout
    assert "libabsent.so is not installed" in skipping.stdout
    requiring = run(tmp_path, ABSENT, "--require-device")
    assert requiring.returncode == 1, requiring.stdout
    assert "libabsent.so is not installed" in requiring.stdout


def test_a_backend_that_is_not_installed_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, ABSENT.replace("backend = Absent", 'backend = "telepathy"'))
    assert done.returncode != 0
    assert "no installed distribution has an entry point 'telepathy'" in done.stdout + done.stderr


def test_the_kit_costs_nothing_until_it_is_used() -> None:
    program = "import sys, bitnet_hal.testing.plugin; print({'numpy', 'bitnet_hal.device'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_speed_is_measured() -> None:
    backend = NumpyBackend()
    bench = Bench(backend, 0, backend.devices()[0])
    params = {"rows": 2, "outs": 32, "width": 256, "y_stride": 32, "y_first": 0}
    tiny = Shape("matmul_ternary", "tiny", params, (32 * 64, 32, 512, 2, 2, 64), {"ADD": 0})
    assert tiny.nbytes == 32 * 64 + 4 * 32 + 512 + 4 * (2 + 2 + 64)
    measured = measure(bench, tiny)
    bench.close()
    assert (measured.kernel, measured.label, measured.rows) == ("matmul_ternary", "tiny", 2)
    assert measured.device_us is not None  # the numpy device has timings
    assert measured.gb_per_s == pytest.approx(tiny.nbytes / measured.device_us / 1e3)


def test_speed_covers_decoding_and_prompts() -> None:
    rows = {int(shape.params["rows"]) for shape in shapes()}
    assert rows == {1, CONTEXT}
