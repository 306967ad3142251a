"""`bitnet new-backend`: the skeleton runs at once, fails for each missing kernel, and for one less once it is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bitnet_core.cli.app import build_app
from bitnet_core.scaffold import write_backend
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.catalogue import CATALOGUE
from typer.testing import CliRunner

BASE = {name for name, spec in CATALOGUE.items() if spec.base}
SLOW = "not ten_thousand and not leave_nothing and not closing_gives"
KERNEL = """
from bitnet_hal.reference.meanings import MEANINGS

rms_norm = MEANINGS["rms_norm"]
"""


def failures(folder: Path) -> tuple[set[str], int]:
    """Rules that fail in a skeleton that is not installed, and how many passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "bitnet_hal.testing.plugin", "-k", SLOW, "tests"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout + done.stderr
    return set(re.findall(r"^FAILED \S+::(\S+)", done.stdout, re.MULTILINE)), int(passed[1])


def missing(kernels: set[str]) -> set[str]:
    """The rules that fail while these kernels are missing."""
    return {"test_every_kernel_compiles[acme-npu:0]"} | {
        f"test_kernel_is_offered[acme-npu:0-{kernel}]" for kernel in kernels
    }


def test_the_skeleton_fails_for_each_kernel_until_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "bitnet-acme-npu"
    result = CliRunner().invoke(build_app(), ["new-backend", "acme-npu", str(folder)])
    assert result.exit_code == 0, result.output
    failed, passed = failures(folder)
    assert failed == missing(BASE)
    assert passed > 30, "memory, plugin and error rules pass from the start"
    (folder / "src/bitnet_acme_npu/kernels/rms_norm.py").write_text(KERNEL)
    failed, more = failures(folder)
    assert failed == missing(BASE - {"rms_norm"})
    assert more > passed + 5, "the kernel's own cases run now"


def test_no_word_of_the_template_is_left(tmp_path: Path) -> None:
    written = write_backend("acme", tmp_path / "plugin")
    assert len(written) >= 11
    names = {path.relative_to(tmp_path / "plugin").as_posix() for path in written}
    assert {"LICENSE", ".github/workflows/ci.yml"} <= names
    for path in written:
        assert "newbackend" not in str(path).lower()
        assert "newbackend" not in path.read_text().lower().replace("new-backend", ""), path
        if path.suffix == ".py":
            compile(path.read_text(), str(path), "exec")
    assert 'acme = "bitnet_acme.plugin"' in (tmp_path / "plugin/pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["", "Acme", "acme npu", "../acme", "-acme", "1acme", "a" * 41, "acme--npu"])
def test_a_bad_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot name a backend"):
        write_backend(name, tmp_path / "plugin")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["cuda", "level-zero", "numpy"])
def test_the_name_of_a_known_backend_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is a backend that bitnet knows"):
        write_backend(name, tmp_path / "plugin")
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        write_backend("acme", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "plugin"
    folder.mkdir()
    write_backend("acme", folder)
    assert (folder / "README.md").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["plugin"]
