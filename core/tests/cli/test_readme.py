"""The README's programs run, and its tables are complete."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
import typer
from bitnet_core import environment
from bitnet_core.cli.app import build_app

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    stories = Path(str(files("bitnet_core"))) / "data" / "stories.gguf"
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block.replace('"model.gguf"', repr(str(stories))), names)
    assert getattr(names["logits"], "shape", ())[0] == 3
    assert getattr(names["y"], "shape", ()) == (1, 256)
    assert capsys.readouterr().out.strip()


def test_every_command_is_listed() -> None:
    group = typer.main.get_command(build_app())
    for name in getattr(group, "commands", {}):
        assert f"`bitnet {name}" in README


def test_every_variable_is_listed() -> None:
    for name in set(re.findall(r"BITNET_[A-Z_]+", environment.__doc__ or "")):
        assert f"`{name}" in README
