"""The table of what the conformance kit found where.

`python docs/matrix.py REPORT.json...` keeps the essence of reports that `pytest --bitnet-report=REPORT.json` wrote in
docs/reports, a file for each device; `python docs/pages.py` fills the table.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bitnet_hal.kernels.describe import table

FOLDER = Path(__file__).parent / "reports"


def kept(report: dict[str, Any], day: str) -> dict[str, dict[str, Any]]:
    """File name -> what is kept of a report, for each of its devices: who, on what, and how many rules passed."""
    found = {}
    for device in report["devices"]:
        tests = [test for test in report["tests"] if test.get("device") == device["device"]]
        name = re.sub(r"[^a-z0-9]+", "-", f"{device['device'].split(':')[0]} {device['name']}".lower()).strip("-")[:60]
        found[f"{name}.json"] = {
            "day": day,
            "versions": {name: report["versions"][name] for name in ("bitnet-hal", "python", "numpy")},
            "device": {key: device[key] for key in ("device", "name", "type", "vendor", "driver", "optional_kernels")},
            "totals": dict(sorted(Counter(test["outcome"] for test in tests).items())),
            "failed": sorted(test["test"] for test in tests if test["outcome"] == "failed"),
        }
    return found


def matrix() -> str:
    """The table, best known first: hardware GPUs, CPUs, software."""
    order = {"gpu": 0, "integrated": 1, "cpu": 2, "software": 3}
    entries = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    entries.sort(key=lambda entry: (order[entry["device"]["type"]], entry["device"]["device"]))
    rows = []
    for entry in entries:
        device, totals = entry["device"], entry["totals"]
        verdict = f"{totals.get('failed', 0)} failed" if totals.get("failed") else "passes"
        counts = f"{verdict} ({totals.get('passed', 0)} rules, {totals.get('skipped', 0)} skipped)"
        backend = device["device"].split(":")[0]
        kind = "CPU behind a GPU's API" if device["type"] == "software" else device["type"]
        rows.append((f"`{backend}`", device["name"], kind, device["driver"], counts, entry["day"]))
    return table(("backend", "device", "kind", "driver", "kit", "day"), *rows)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path in sys.argv[1:]:
        day = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC).date().isoformat()
        for name, entry in kept(json.loads(Path(path).read_text(encoding="utf-8")), day).items():
            (FOLDER / name).write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
