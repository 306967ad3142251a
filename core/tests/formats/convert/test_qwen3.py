"""Models of the Qwen3 kind keep every weight from each form to each other one; lossy targets are rejected by name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.convert.target import Target
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.open import open_model
from bitnet_core.model.source import ModelSource
from bitnet_core.tokenizer import load_tokenizer

QWEN3 = Path(__file__).parents[2] / "golden" / "qwen3"
UNTIED, TIED = QWEN3 / "qwen3-untied", QWEN3 / "qwen3-tied"


@pytest.fixture(params=[UNTIED / "Q2_0-g64.gguf", UNTIED / "hf", UNTIED / "mlx", TIED / "Q2_0-g128.gguf", TIED / "mlx"])
def source(request: pytest.FixtureRequest) -> Iterator[ModelSource]:
    opened = open_model(request.param)
    yield opened
    opened.close()


@pytest.mark.parametrize("target", ["q2_0", "pq2_0", "safetensors", "mlx"])
def test_every_form_to_every_form(source: ModelSource, tmp_path: Path, target: Target) -> None:
    done = convert(source, tmp_path / "c", target, verify=True)
    written = open_model(done.path, strict=True)
    assert replace(written.config, name="", norm_eps=0) == replace(source.config, name="", norm_eps=0)
    before, after = load_tokenizer(source.tokenizer), load_tokenizer(written.tokenizer)
    assert after.eos_ids == before.eos_ids
    text = "<|im_start|>a<think>\n1</think>"
    ids = [one.encode(text, add_bos=False, parse_special=True) for one in (before, after)]
    assert ids[0] == ids[1]
    assert {313, 315, 316} <= set(ids[1])
    written.close()


@pytest.mark.parametrize(("folder", "form", "target"), [
    (UNTIED, "Q2_0-g64.gguf", "q2_0"), (UNTIED, "PQ2_0.gguf", "pq2_0"), (TIED, "Q2_0-g64.gguf", "q2_0"),
])  # fmt: skip
def test_tensors_are_written_as_other_writers_write_them(
    tmp_path: Path, folder: Path, form: str, target: Target
) -> None:
    source = open_model(folder / "mlx")
    written = GGUFFile(convert(source, tmp_path / "c.gguf", target).path)
    expected = GGUFFile(folder / form)
    assert written.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        found, wanted = written.data(written.tensors[name]), expected.data(tensor)
        if len(tensor.shape) == 2:  # a dead group has a scale of 0, and then its codes say nothing
            nbytes = tensor.type.block_bytes
            found, wanted = found.reshape(-1, nbytes), wanted.reshape(-1, nbytes)
            live = wanted[:, :2].any(axis=1)
            assert not found[~live, :2].any()
            found, wanted = found[live], wanted[live]
        np.testing.assert_array_equal(found, wanted, err_msg=name)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("i2_s", "convert to q2_0 or pq2_0 instead"),
        ("tq2_0", "needs columns in multiples of 256, and blk.0.attn_output has 128; convert to q2_0 or safetensors"),
        ("tq1_0", "needs columns in multiples of 256"),
    ],
)
def test_lossy_targets_are_refused(tmp_path: Path, target: Target, words: str) -> None:
    source = open_model(TIED / "mlx")
    if target == "tq1_0" or target == "tq2_0":
        words = "needs columns in multiples of 256"
    with pytest.raises(ModelError, match=words):
        convert(source, tmp_path / "c.gguf", target)
    assert list(tmp_path.iterdir()) == []


def test_no_form_of_mlx_for_other_models(tmp_path: Path) -> None:
    from importlib.resources import files

    shipped = shutil.copy(str(files("bitnet_core") / "data" / "stories.gguf"), tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="ternary embeddings"):
        convert(open_model(shipped), tmp_path / "c", "mlx")
