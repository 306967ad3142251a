"""Results of a run of the kit: collected while pytest runs, then written as JSON and as a table."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bitnet_hal.version import __version__

if TYPE_CHECKING:
    from bitnet_hal.device import DeviceInfo
    from bitnet_hal.testing.speed import SpeedResult


class Results:
    """Outcomes of all rules by device, and speeds."""

    def __init__(self) -> None:
        self.devices: dict[str, DeviceInfo] = {}
        self.tests: dict[str, dict[str, str]] = {}
        self.speeds: dict[str, list[SpeedResult]] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Record one phase of one test; a failure in any phase counts."""
        entry = self.tests.setdefault(report.nodeid, {"test": report.nodeid.split("::")[-1], "outcome": "passed"})
        entry.update({key: str(value) for key, value in report.user_properties if key == "device"})
        if report.outcome != "passed" and entry["outcome"] != "failed":
            entry["outcome"] = report.outcome
            entry["reason"] = _reason(report)

    def document(self) -> dict[str, Any]:
        """Return the JSON document: versions, devices, totals, and every test."""
        tests = list(self.tests.values())
        return {
            "schema": 1,
            "versions": {
                "bitnet-hal": __version__,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "numpy": version("numpy"),
            },
            "devices": [_device(info) for info in self.devices.values()],
            "totals": dict(sorted(Counter(test["outcome"] for test in tests).items())),
            "tests": tests,
        }

    def speed_document(self) -> dict[str, Any]:
        """Return the JSON document of `--bitnet-perf`."""
        return {
            "schema": 1,
            "devices": [
                {**_device(self.devices[name]), "kernels": [dataclasses.asdict(one) for one in measured]}
                for name, measured in self.speeds.items()
            ],
        }

    def speed_lines(self) -> list[str]:
        """Return the lines of the table of `--bitnet-perf`."""
        lines = []
        for name, measured in self.speeds.items():
            lines.append(f"{name}: {self.devices[name].name} ({self.devices[name].driver})")
            lines.append(f"  {'kernel':22} {'shape':12} {'T':>4} {'us':>12} {'device us':>12} {'GB/s':>9}")
            for one in measured:
                clock = f"{one.device_us:12,.1f}" if one.device_us is not None else f"{'-':>12}"
                head = f"  {one.kernel:22} {one.label:12} {one.rows:4}"
                lines.append(f"{head} {one.us:12,.1f} {clock} {one.gb_per_s:9.2f}")
        return lines


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write a document to a file as JSON."""
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _device(info: DeviceInfo) -> dict[str, Any]:
    return {
        "device": info.request,
        "name": info.name,
        "type": info.type.value,
        "vendor": info.vendor,
        "driver": info.driver,
        "features": sorted(info.features),
        "optional_kernels": sorted(info.kernels),
        "batch_invariant_rows": dict(info.batch_invariant_rows),
        "total_memory": info.total_memory,
    }


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # longrepr of a skip is (file, line, reason)
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).splitlines()[0]
