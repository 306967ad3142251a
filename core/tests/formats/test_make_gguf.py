"""The benchmarks' files of random weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import bitnet_core
import numpy as np
import pytest
from bitnet_core.formats.synthetic import SyntheticSource

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "make_gguf.py"


@pytest.fixture
def make_gguf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_gguf", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shape", ["tiny", "bonsai-tiny"])
def test_a_file_is_the_model_of_its_shape(make_gguf: ModuleType, tmp_path: Path, shape: str) -> None:
    """Its scales may be rounded to 16 bits."""
    source, path = SyntheticSource(shape), tmp_path / "model.gguf"
    make_gguf.write(source, path)
    layout = "A" if shape == "tiny" else None  # random weights give no evidence of it
    with bitnet_core.load(path, "numpy", layout=layout) as written, bitnet_core.load(source, "numpy") as given:
        logits = given.logits([3, 5, 7])
        assert np.abs(written.logits([3, 5, 7]) - logits).max() < 0.02 * np.abs(logits).max()


def test_a_shape_that_cannot_be_written_is_refused(make_gguf: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a shape that can be written"):
        make_gguf.write(SyntheticSource("maple-tiny"), tmp_path / "model.gguf")
