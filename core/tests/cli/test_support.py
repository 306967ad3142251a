"""The page of what was tested where is made of reports of the kit, and of nothing else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix_under_test", DOCS / "matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return module


def report(outcome: str) -> dict[str, object]:
    device = {"device": "vulkan:0", "name": "Card (X)", "type": "gpu", "vendor": "V", "driver": "D 1", "features": []}
    tests = [
        {"test": "test_a", "outcome": "passed", "device": "vulkan:0"},
        {"test": "test_no_device", "outcome": "passed"},
    ]
    tests.append({"test": "test_b", "outcome": outcome, "device": "vulkan:0"})
    versions = {"bitnet-hal": "2.1.0", "python": "3.11.7", "numpy": "2.4", "platform": "P"}
    return {"versions": versions, "devices": [{**device, "optional_kernels": []}], "tests": tests}


@pytest.mark.parametrize(
    ("outcome", "shown"), [("passed", "passes (2 rules, 0 skipped)"), ("failed", "1 failed (1 rules, 0 skipped)")]
)
def test_a_report_becomes_a_line(matrix: ModuleType, tmp_path: Path, outcome: str, shown: str) -> None:
    for name, entry in matrix.kept(report(outcome), "2026-01-02").items():
        assert name == "vulkan-card-x.json"
        assert entry["failed"] == (["test_b"] if outcome == "failed" else [])
        (tmp_path / name).write_text(json.dumps(entry))
    cells = [cell.strip() for cell in matrix.matrix().splitlines()[2].strip("|").split("|")]
    assert cells == ["`vulkan`", "Card (X)", "gpu", "D 1", shown, "2026-01-02"]


def test_every_report_that_is_kept_is_whole() -> None:
    for path in (DOCS / "reports").glob("*.json"):
        entry = json.loads(path.read_text(encoding="utf-8"))
        assert set(entry) == {"day", "versions", "device", "totals", "failed"}, path.name
        assert entry["totals"].get("passed", 0) > 100, path.name
