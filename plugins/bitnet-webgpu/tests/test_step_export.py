"""The shipped model's greedy step as files: they hold all that a program elsewhere needs to launch it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bitnet_hal.device import Tuning
from bitnet_hal.errors import UsageError
from bitnet_hal.launcher import Launch
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.tuning.query import TuningQuery
from bitnet_webgpu.step_export import FORMAT, ExportDevice, export_stories


def tune(query: TuningQuery) -> Tuning:
    found = NumpyDevice().tuning(query.spec, query.constants, query.params)
    return replace(found, workspace=64 if query.spec.name == "argmax_advance" else 0)


def stages(launch: Launch) -> list[dict[str, Any]]:
    return [{"kernel": launch.kernel.spec.name, "grid": launch.grid}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("export") / "model"
    export_stories(made, ExportDevice(numpy_info(), tune), stages)
    return made


def test_the_files_hold_all_of_a_step(folder: Path) -> None:
    document = json.loads((folder / "model.json").read_text())
    buffers, launches = document["buffers"], document["launches"]
    assert document["format"] == FORMAT
    placed = [buffer for buffer in buffers if "at" in buffer]
    assert (folder / "weights.bin").stat().st_size == sum(buffer["size"] for buffer in placed)
    assert [document["kernels"][launch["kernel"]] for launch in (launches[0], launches[-1])] == [
        "embed_rows",
        "argmax_advance",
    ]
    for launch in launches:
        assert len(launch["views"]) == len(launch["writes"])
        for (number, offset, nbytes), writes in zip(launch["views"], launch["writes"], strict=True):
            assert offset + nbytes <= buffers[number]["size"]
            assert not (writes and "at" in buffers[number]), "what a launch writes is no weight"
    assert set(document["host"]) == {"step", "history", "tables"}
    assert launches[-1]["writes"][-1], "the workspace"


def test_nothing_is_overwritten(folder: Path) -> None:
    before = (folder / "model.json").read_bytes()
    with pytest.raises(UsageError, match="not an empty folder"):
        export_stories(folder, ExportDevice(numpy_info(), tune), stages)
    assert (folder / "model.json").read_bytes() == before
