"""Tint, the compiler of Chromium, accepts every kernel too (naga, wgpu's own, compiles them in the kit)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.tuning.query import TuningQuery
from bitnet_webgpu.compile import source
from bitnet_webgpu.describe import KNOWN
from bitnet_webgpu.tuning import candidate_tunings

pytestmark = pytest.mark.slow

VERSION = "0.6.2"
"""Version of npm `webgpu`."""
PROLOGUES = {1: "", 32: "enable subgroups;\n"}
"""First lines by size of subgroups, which a browser requires and naga (wgpu 0.32) rejects."""
SCRIPT = Path(__file__).with_name("tint.mjs")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and the script."""
    folder = tmp_path_factory.mktemp("tint")
    if shutil.which("npm") is None:
        assert os.environ.get("CI") != "true", "CI installs npm"
        pytest.skip("it needs npm (apt install npm)")
    install = ["npm", "install", "--no-audit", "--no-fund", f"webgpu@{VERSION}"]
    subprocess.run(install, cwd=folder, check=True, capture_output=True, timeout=120)
    shutil.copy(SCRIPT, folder)
    return folder


def compiled(node: Path, folder: Path) -> dict[str, list[str]]:
    command = ["node", str(node / SCRIPT.name), str(folder)]
    run = subprocess.run(command, cwd=node, check=True, capture_output=True, text=True, timeout=120)
    found: dict[str, list[str]] = json.loads(run.stdout.splitlines()[-1])
    return found


def write_sources(folder: Path) -> set[str]:
    """A file for every text of a kernel that a GPU or a CPU may be given for the kit's cases; the kernels' names."""
    optional = frozenset({*KNOWN["everywhere"], *KNOWN["fused"]})
    texts = set[tuple[str, str]]()
    for kind, subgroups in product((DeviceType.GPU, DeviceType.SOFTWARE), PROLOGUES):
        extra = {"workgroup_storage": 49152, "subgroups": subgroups}
        info = DeviceInfo("webgpu", 0, "x", kind, kernels=optional, extra=extra)
        for spec in (one for one in CATALOGUE.values() if one.base or one.name in optional):
            for launch in (case.launch() for case in cases_of(spec.name)):
                try:
                    tunings = candidate_tunings(TuningQuery(spec, launch.constants, launch.params, info))
                except UnsupportedError:
                    continue
                texts |= {(spec.name, PROLOGUES[subgroups] + source(spec, launch.constants, one)) for one in tunings}
    for number, (name, text) in enumerate(sorted(texts)):
        (folder / f"{name}-{number}.wgsl").write_text(text, "utf-8")
    return {name for name, _ in texts}


def test_tint_accepts_every_kernel(node: Path, tmp_path: Path) -> None:
    names = write_sources(tmp_path)
    assert names == {spec.name for spec in CATALOGUE.values() if spec.base} | {*KNOWN["everywhere"], *KNOWN["fused"]}
    found = compiled(node, tmp_path)
    assert len(found) == len(list(tmp_path.iterdir()))
    assert not {file: errors for file, errors in found.items() if errors}


def test_the_check_can_fail(node: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.wgsl").write_text("@compute @workgroup_size(1) fn main() { let x: i32 = 1.5; }")
    assert compiled(node, tmp_path)["bad.wgsl"]
