"""Lint, types and tests of core and of every plugin found in plugins/ and examples/.

`nox` runs everything this machine can; `nox -s core` or `nox -s plugin -- bitnet-opencl` runs a part.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import nox

nox.options.stop_on_first_error = False
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
PROJECTS = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for folder in ("plugins", "examples")
    for path in (ROOT / folder).glob("*/pyproject.toml")
)
TYPE_STUBS = ("mypy>=1.15", "types-psutil")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The runs share few cores; BLAS threads only get in each other's way."""


def project_table(project: str) -> dict[str, Any]:
    """[tool.bitnet] of a project: what its session needs beyond its dependencies.

    programs: executables without which the session is skipped (a compiler, say).
    test-requires: packages for its tests.
    software-device: true if a software device can stand in for the hardware; CI then requires it.
    """
    with open(ROOT / project / "pyproject.toml", "rb") as file:
        table: dict[str, Any] = tomllib.load(file).get("tool", {}).get("bitnet", {})
    return table


@nox.session
def lint(session: nox.Session) -> None:
    """Style of the whole tree."""
    session.install("ruff>=0.14")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def core(session: nox.Session) -> None:
    """Types and tests of core; no GPU is needed."""
    session.install("./core[test]", *TYPE_STUBS)
    session.run("mypy", "core/src")
    session.run("pytest", "core/tests", *session.posargs, env=ONE_THREAD)


@nox.session
def stories(session: nox.Session) -> None:
    """Tests of the generator behind the shipped model."""
    session.install("pytest>=8", "numpy", "tokenizers")
    session.run("pytest", "examples/stories/tests", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The author documentation, without a warning; the pages are in build/site."""
    session.install("./core[test]", "-r", "docs/requirements.txt")
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
@nox.parametrize("project", PROJECTS, ids=[Path(project).name for project in PROJECTS])
def plugin(session: nox.Session, project: str) -> None:
    """Types and tests of one plugin, installed beside core as a user would."""
    table = project_table(project)
    for program in table.get("programs", []):
        if shutil.which(program) is None:
            session.skip(f"{project} needs {program}, which this machine does not have")
    session.install("./core[test]", f"./{project}", *table.get("test-requires", []), *TYPE_STUBS)
    session.run("mypy", f"{project}/src")
    extra = ["--require-device"] if os.environ.get("CI") and table.get("software-device") else []
    session.run("pytest", f"{project}/tests", *extra, *session.posargs, env=ONE_THREAD)
