"""`bitnet convert`, `quantize` and `inspect` as commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from bitnet_core.cli.app import build_app
from bitnet_core.errors import ModelError
from bitnet_core.formats.open import open_model
from bitnet_hal.errors import BitnetError, UsageError
from typer.testing import CliRunner, Result

MakeFolder = Callable[..., Path]


def bitnet(*arguments: object) -> Result:
    result = CliRunner().invoke(build_app(), [str(argument) for argument in arguments])
    if isinstance(result.exception, BitnetError):
        raise result.exception
    return result


def test_convert_and_quantize(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    result = bitnet("convert", folder, tmp_path / "a.gguf", "--to", "tq2_0", "--verify")
    assert result.exit_code == 0
    assert "scales-rounded" in result.stderr
    assert "read back and compared" in result.stderr
    assert open_model(tmp_path / "a.gguf").format == "GGUF v3, TQ2_0"
    assert bitnet("quantize", folder, tmp_path / "b.gguf").exit_code == 0
    assert "I2_S" in open_model(tmp_path / "b.gguf", layout="A").format
    with pytest.raises(UsageError, match="ternary already"):
        bitnet("quantize", tmp_path / "a.gguf", tmp_path / "c.gguf")
    with pytest.raises(UsageError, match="--force"):
        bitnet("convert", folder, tmp_path / "a.gguf")
    assert bitnet("convert", folder, tmp_path / "a.gguf", "--to", "q4").exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "b.gguf", "masters"]


def test_inspect(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    bitnet("convert", folder, tmp_path / "a.gguf", "--to", "i2_s")
    found = json.loads(bitnet("inspect", tmp_path / "a.gguf", "--json", "--layout", "A").stdout)
    assert found["format"] == "GGUF v3, I2_S layout A (given)"
    assert found["kinds"]["I2_S"]["tensors"] == 14
    assert found["bytes"] == sum(tensor["nbytes"] for tensor in found["tensors"])
    assert found["config"]["activation"] == "relu2"
    assert found["tokenizer"]["chat_template"] == "file"
    assert list(found["tokenizer"]["stop"].values()) == ["<|end_of_text|>", "<|eot_id|>"]
    assert "i2_s-layout" in [finding["code"] for finding in found["findings"]]
    text = bitnet("inspect", folder, "--tensors").stdout
    assert "squared ReLU" in text
    assert "masters-quantized" in text
    assert "model.layers.1.mlp.down_proj.weight" in text


def test_inspect_of_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError) as caught:
        bitnet("inspect", tmp_path / "a.gguf")
    assert caught.value.exit_code == 3


def test_inspect_shows_a_model_whose_tokenizer_is_broken(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "tokenizer.json").write_text("{}")
    found = json.loads(bitnet("inspect", folder, "--json").stdout)
    assert "only BPE" in found["tokenizer"]["error"]
