"""After any error the destination holds its old content or the whole new model, and nothing else is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.convert import gguf as convert_gguf
from bitnet_core.formats.convert import hf as convert_hf
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.convert.target import Target
from bitnet_core.formats.open import open_model
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import TernaryWeight
from bitnet_hal.errors import UsageError

TARGETS: list[Target] = ["i2_s", "tq2_0", "safetensors"]


@pytest.fixture
def source(make_folder: Callable[..., Path]) -> ModelSource:
    return open_model(make_folder())


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, ModelError, OSError, MemoryError])
def test_a_failure_half_way_leaves_nothing(
    source: ModelSource, tmp_path: Path, target: Target, error: type[BaseException]
) -> None:
    destination = tmp_path / "out"
    convert(source, destination, target)
    before = listing(tmp_path)
    ternary = source.ternary

    def failing(name: str) -> TernaryWeight:
        if name == "blk.1.ffn_up":
            raise error("stopped")
        return ternary(name)

    source.ternary = failing  # type: ignore[method-assign]
    with pytest.raises(ModelError if error is OSError else error, match="stopped"):
        convert(source, destination, target, force=True)
    with pytest.raises(ModelError if error is OSError else error):
        convert(source, tmp_path / "new", target)
    assert listing(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["masters", "out"]


KILLED = """
import os, signal, sys
from pathlib import Path
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.open import open_model

source = open_model(sys.argv[1])
ternary = source.ternary

def killed(name):
    if name == "blk.1.ffn_up":
        os.kill(os.getpid(), signal.SIGKILL)
    return ternary(name)

source.ternary = killed
convert(source, Path(sys.argv[2]), sys.argv[3], force=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("target", TARGETS)
def test_a_killed_process_leaves_the_destination_alone(source: ModelSource, tmp_path: Path, target: Target) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    convert(source, folder / "out", target)
    before = listing(folder)
    for name in ("out", "new"):
        arguments = [str(source.path), str(folder / name), target]
        assert subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False).returncode == -signal.SIGKILL
    assert {path: data for path, data in listing(folder).items() if not path.startswith(".")} == before
    assert not (folder / "new").exists()
    convert(source, folder / "out", target, force=True)
    assert {path: data for path, data in listing(folder).items() if not path.startswith(".")} == before


@pytest.mark.parametrize("target", TARGETS)
def test_verify_notices_one_wrong_code_and_keeps_nothing(
    source: ModelSource, tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(data: np.ndarray) -> np.ndarray:
        data = data.copy()
        flat = data.reshape(-1)
        flat[5] ^= np.uint8(1 if flat[5] & 3 != 2 else 2)  # another legal code in the lowest bit pair
        return data

    if target == "safetensors":
        encode_codes = convert_hf.hf_packed.encode_codes
        monkeypatch.setattr(convert_hf.hf_packed, "encode_codes", lambda *args: damage(encode_codes(*args)))
    else:
        kind = target.upper()
        encode = convert_gguf._ENCODERS[kind]
        monkeypatch.setitem(convert_gguf._ENCODERS, kind, lambda weight: damage(encode(weight)))
    convert(source, tmp_path / "unverified", target)
    with pytest.raises(ModelError, match=r"differs from its source in blk\.0\.attn_q: ternary values"):
        convert(source, tmp_path / "out", target, verify=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["masters", "unverified"]


def test_verify_notices_a_wrong_scale(source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = convert_gguf._ENCODERS["I2_S"]

    def damage(weight: TernaryWeight) -> np.ndarray:
        data = encode(weight)
        data[-32] ^= 1
        return data

    monkeypatch.setitem(convert_gguf._ENCODERS, "I2_S", damage)
    with pytest.raises(ModelError, match="scales changed"):
        convert(source, tmp_path / "out", "i2_s", verify=True)


@pytest.mark.parametrize("target", ["i2_s", "safetensors"])
def test_an_interrupt_while_the_old_one_is_moved_away_brings_it_back(
    source: ModelSource, tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = tmp_path / "out"
    convert(source, destination, "safetensors")
    before = listing(destination)

    def ended(*_: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr("os.replace", ended)
    with pytest.raises(SystemExit):
        convert(source, destination, target, force=True)
    assert listing(destination) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["masters", "out"]


@pytest.mark.parametrize("target", ["i2_s", "safetensors"])
def test_what_appears_at_the_destination_meanwhile_is_left_alone(
    source: ModelSource, tmp_path: Path, target: Target
) -> None:
    def meanwhile(*_: object) -> None:
        (tmp_path / "out").write_text("theirs")

    with pytest.raises(UsageError, match="exists"):
        convert(source, tmp_path / "out", target, progress=meanwhile)
    assert (tmp_path / "out").read_text() == "theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["masters", "out"]


def test_destinations(source: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"folder .* is missing"):
        convert(source, tmp_path / "nosuch" / "a.gguf", "i2_s")
    with pytest.raises(UsageError, match="being converted"):
        convert(source, tmp_path / "masters", "safetensors", force=True)
    with pytest.raises(UsageError, match="being converted"):
        convert(source, tmp_path, "safetensors", force=True)
    taken = tmp_path / "taken"
    taken.write_text("something")
    with pytest.raises(UsageError, match="--force"):
        convert(source, taken, "i2_s")
    assert taken.read_text() == "something"
    convert(source, taken, "i2_s", force=True)
    assert taken.read_bytes()[:4] == b"GGUF"
    convert(source, taken, "safetensors", force=True)
    assert (taken / "config.json").is_file()
    convert(source, taken, "safetensors", force=True)
    convert(source, taken, "tq2_0", force=True)
    assert taken.read_bytes()[:4] == b"GGUF"
    home = tmp_path / "home"
    (home / "photos").mkdir(parents=True)
    with pytest.raises(UsageError, match="other files than one model"):
        convert(source, home, "safetensors", force=True)
    assert (home / "photos").is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "masters", "taken"]
