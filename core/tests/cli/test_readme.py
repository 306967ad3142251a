"""README and the user's pages show what the program does, and their tables are complete."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from bitnet_core.api.options import ChatOptions, LoadSettings
from bitnet_core.cli.app import build_app
from bitnet_hal import environment, errors
from bitnet_hal.discovery.known import KNOWN
from bitnet_hal.errors import DEVICE_FAILURES, GpuError

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECTS = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for pattern in ("hal", "core", "plugins/*", "examples/*")
    for path in ROOT.glob(f"{pattern}/pyproject.toml")
)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def metadata(project: str) -> dict[str, object]:
    table: dict[str, object] = tomllib.loads((ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def test_the_python_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    stories = Path(str(files("bitnet_core"))) / "data" / "stories.gguf"
    blocks = re.findall(r"```python\n(.*?)```", README + page("python.md"), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(block.replace('"model.gguf"', repr(str(stories))), names)
    assert getattr(names["logits"], "shape", ())[0] == 3
    assert getattr(names["y"], "shape", ()) == (1, 256)
    assert capsys.readouterr().out.strip()


FIRST = (
    'python3 -m venv .venv && . .venv/bin/activate && pip install ./hal ./core && bitnet run "Once upon a time" -n 60'
)
"""The command of README and of docs/install.md, which .ci/bare runs."""


def test_the_readme_is_short_and_its_story_is_the_models(bitnet) -> None:
    assert len(README.splitlines()) <= 80
    shown = README.partition(f"$ {FIRST}\n")[2].partition("\n$ ")[0]
    assert bitnet("run", "Once upon a time", "-n", 60).out.strip() == shown.strip()
    assert f"`{FIRST}`" in page("install.md")


@pytest.mark.skipif(shutil.which("bash") is None, reason="a script of bash")
def test_the_script_for_a_bare_machine_finds_both_commands() -> None:
    """.ci/bare takes them from README by these lines."""
    lines = [line for line in (ROOT / ".ci" / "bare").read_text().splitlines() if "README.md" in line]
    script = "\n".join([*lines, 'printf "%s\\n" "$install" "$tests"'])
    found = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == [FIRST, "pip install nox && nox"]


def test_every_command_is_listed() -> None:
    group = typer.main.get_command(build_app())
    for name in getattr(group, "commands", {}):
        assert f"`bitnet {name}" in page("commands.md")


def test_every_variable_is_listed() -> None:
    names = set(re.findall(r"BITNET_[A-Z_]+", environment.__doc__ or ""))
    names |= {name for backend in KNOWN.values() for name in backend.variables}
    for source in ROOT.glob("plugins/*/src/**/*.py"):
        names |= set(re.findall(r"\bBITNET_[A-Z_]+[A-Z]\b", source.read_text(encoding="utf-8")))
    assert [name for name in sorted(names) if f"`{name}" not in page("environment.md")] == []


def test_every_argument_of_the_python_api_is_listed() -> None:
    names = {*get_type_hints(LoadSettings), *get_type_hints(ChatOptions)}
    assert [name for name in sorted(names) if f"`{name}`" not in page("python.md")] == []


def test_the_table_of_errors_says_what_auto_does() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", page("backends/errors.md"), re.MULTILINE)
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GpuError)}
    assert {name for name, _ in rows} == {kind.__name__ for kind in kinds - {GpuError}}
    assert {name for name, does in rows if "falls back to the next device" in does} == {
        kind.__name__ for kind in DEVICE_FAILURES
    }


def test_links_lead_somewhere() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for link in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.relative_to(ROOT)} links to {link}"


def test_the_chart_is_up_to_date() -> None:
    """`python docs/speed_chart.py` draws it again."""
    command = [sys.executable, ROOT / "docs" / "speed_chart.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_panel_of_the_chart_has_other_programs_beside_ours() -> None:
    panels = (ROOT / "docs" / "speed.svg").read_text(encoding="utf-8").split('<text class="head"')[1:]
    titles = [panel.partition(">")[2].partition("<")[0] for panel in panels]
    assert {"H200", "H100", "EPYC", "Xeon"} <= set(re.findall(r"\w+", " ".join(titles)))
    for title, panel in zip(titles, panels, strict=True):
        assert 'class="ours"' in panel, title
        assert 'class="peer"' in panel, title
        assert "llama.cpp" in panel, title


@pytest.mark.parametrize("project", PROJECTS)
def test_packages_agree(project: str) -> None:
    """One licence; one version, but for the contract's own; one range of the contract or of core."""
    table = metadata(project)
    shown = (ROOT / project / "README.md").read_text(encoding="utf-8")
    assert "](." not in shown, "a relative link leads nowhere on the page of the package"
    assert (ROOT / project / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (table["license"], table["license-files"]) == ("MIT", ["LICENSE"])
    assert table["dynamic"] == ["version"] if project == "hal" else table["version"] == "0.2.0"
    dependencies = table["dependencies"]
    assert isinstance(dependencies, list)
    cores = [re.sub(r"\[.*\]", "", text) for text in dependencies]
    wanted = "bitnet-core>=0.2,<0.3" if project == "plugins/bitnet-server" else "bitnet-hal>=2.1,<3"
    assert project == "hal" or [text for text in cores if text.startswith("bitnet-")] == [wanted]
    assert not [text for text in dependencies if "==" in text.partition(";")[0]]


def test_core_has_an_extra_for_every_backend() -> None:
    extras = metadata("core")["optional-dependencies"]
    assert isinstance(extras, dict)
    for backend in KNOWN.values():
        if backend.package != "bitnet-hal":
            assert extras[backend.name.replace("-", "")] == [f"{backend.package}>=0.2,<0.3"]
