"""The files of continuous integration are read by nobody here but this test and zizmor (in the session `lint`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FILES = sorted(
    [
        *ROOT.glob(".github/workflows/*.yml"),
        *ROOT.glob("core/src/bitnet_core/scaffold/template/.github/workflows/*.yml"),
    ]
)


def read(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def steps(jobs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in jobs.values():
        yield from job["steps"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_workflow_is_whole(path: Path) -> None:
    """Workflows have nothing that a runner refuses or runs in an unexpected way."""
    workflow = read(path)
    jobs = workflow["jobs"]
    assert workflow["name"]
    assert workflow[True], "`on` is a truth value in YAML: the events"
    assert workflow["permissions"] == {"contents": "read"}, "no job writes to the repository"
    for job in jobs.values():
        assert job["runs-on"]
        assert job["timeout-minutes"] <= 60
        assert set(job.get("needs", [])) <= set(jobs)
        named = set(re.findall(r"\$\{\{ matrix\.(\w+)", str(job)))
        assert named <= set(job.get("strategy", {}).get("matrix", {}))
    for step in steps(jobs):
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w.-]+(/[\w.-]+)+@[\w./]+", step.get("uses", "a/b@v1"))
        assert "${{ inputs." not in re.sub(r"inputs\.[\w-]+ && '--", "", step.get("run", "")), (
            "an input must not be part of a shell command"
        )


def test_sessions_and_scripts_that_workflows_run_are_there() -> None:
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE))
    runs = [step["run"] for path in FILES for step in steps(read(path)["jobs"]) if "run" in step]
    asked = {name for run in runs for name in re.findall(r"nox -s (\w+)", run)}
    assert {"core", "dist", "audit"} <= asked <= sessions
    scripts = {name for run in runs for name in re.findall(r"(?:plugins/\S+|\.ci/\w+)(?=\s|$)", run)}
    assert {name for name in scripts if name.endswith(".sh") or name.startswith(".ci/")} >= {".ci/run"}
    assert [name for name in scripts if not (ROOT / name).exists()] == []
