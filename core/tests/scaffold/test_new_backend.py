"""`bitnet new-backend`: the skeleton passes all tests at once, and a wrong kernel is a line in the list of failures."""

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
SLOW = ["ten_thousand", "leave_nothing", "closing_gives", "shipped_model", "scales_of_blocks", "prompt", "exact-t150"]
WRONG = "def rms_norm(arrays, params, constants):\n    arrays['y'][:] = 1.0\n"


def run_kit(folder: Path, selected: str) -> tuple[set[str], int, str]:
    """Run the tests of a skeleton that is not installed; return the failed ones, the number passed and the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "bitnet_hal.testing.plugin", "-k", selected, "tests"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout + done.stderr
    return set(re.findall(r"^FAILED \S+::(\S+)", done.stdout, re.MULTILINE)), int(passed[1]), done.stdout


def test_the_skeleton_passes_and_a_wrong_kernel_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "bitnet-acme-npu"
    result = CliRunner().invoke(build_app(), ["new-backend", "acme-npu", str(folder)])
    assert result.exit_code == 0, result.output
    kernels = folder / "src/bitnet_acme_npu/kernels"
    assert {path.stem for path in kernels.glob("*.py")} == BASE | {"__init__"}
    failed, passed, output = run_kit(folder, " and ".join(f"not {name}" for name in SLOW))
    assert not failed, output
    assert passed > 300, "all kernels, memory, plugin and error rules pass from the start"
    (kernels / "rms_norm.py").write_text(WRONG)
    failed, _, output = run_kit(folder, "kernel_is_offered or (test_kernel and (rms_norm or embed_rows))")
    assert failed
    assert all("-rms_norm-" in name for name in failed)
    assert not re.search(r"^(    def |>  )", output, re.MULTILINE), "a list, not tracebacks"


def test_auto_prefers_every_device_to_the_skeleton(tmp_path: Path) -> None:
    write_backend("acme", tmp_path / "plugin")
    info = tmp_path / "plugin/src/bitnet_acme-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bitnet-acme\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[bitnet.backends]\nacme = bitnet_acme.plugin\n")
    code = "from bitnet_hal.discovery.order import ranked\nfrom bitnet_hal.discovery.selection import devices\n"
    code += "print(*(info.backend for info in ranked(devices(['acme', 'numpy']))))"
    environment = {**os.environ, "PYTHONPATH": str(info.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["numpy", "acme"]


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
    with pytest.raises(UsageError, match="cannot be the name of a backend"):
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
