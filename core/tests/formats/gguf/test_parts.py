"""Split GGUF files are read from their parts, merged ones as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.types import ValueType
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.names import matrices, vectors
from bitnet_core.formats.open import open_model

Make = Callable[..., Any]
PARTS = 3


def write_parts(folder: Path, model: Any, changes: dict[int, dict[str, int]] | None = None) -> list[Path]:
    """Write a model as llama-gguf-split does. changes: values of split keys by part."""
    names = list(model.tensors)
    paths = [folder / f"tiny-{number + 1:05}-of-{PARTS:05}.gguf" for number in range(PARTS)]
    for number, path in enumerate(paths):
        stated = {"no": number, "count": PARTS, "tensors.count": len(names)} | (changes or {}).get(number, {})
        own = names[number::PARTS]
        with GGUFWriter(path) as writer:
            for key, value in model.keys.items() if number == 0 else ():
                writer.metadata(key, value)
            writer.metadata("split.no", stated["no"], ValueType.UINT16)
            writer.metadata("split.count", stated["count"], ValueType.UINT16)
            writer.metadata("split.tensors.count", stated["tensors.count"], ValueType.INT32)
            for name in own:
                shape, dtype, data = model.tensors[name]
                writer.tensor(name, shape, dtype, data.size)
            for name in own:
                writer.write(name, [model.tensors[name][2]])
    return paths


def message(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_model(path)
    return str(caught.value)


@pytest.mark.parametrize("part", range(PARTS))
def test_any_part_opens_the_whole_model(tmp_path: Path, make_tiny: Make, part: int) -> None:
    whole = open_model(make_tiny().write(tmp_path / "whole.gguf"))
    paths = write_parts(tmp_path, make_tiny())
    split = open_model(paths[part])
    assert split.config == whole.config
    assert len(split.tensors) == len(whole.tensors)
    for name in matrices(whole.config):
        assert (split.ternary(name).codes == whole.ternary(name).codes).all()
    for name in vectors(whole.config):
        assert (split.vector(name) == whole.vector(name)).all()
    assert split.sha256() == open_model(paths[0]).sha256() != whole.sha256()
    split.close()


@pytest.mark.parametrize("count", [0, 1])
def test_a_merged_file_is_whole(tmp_path: Path, make_tiny: Make, count: int) -> None:
    model = make_tiny()
    model.keys |= {"split.no": 0, "split.count": count, "split.tensors.count": len(model.tensors)}
    open_model(model.write(tmp_path / "merged.gguf"), strict=True).close()


def test_parts_that_do_not_belong_together(tmp_path: Path, make_tiny: Make) -> None:
    paths = write_parts(tmp_path, make_tiny(), {1: {"no": 2}})
    assert "states that it is part 3 of 3, and its name says 2 of 3" in message(paths[0])
    write_parts(tmp_path, make_tiny(), {2: {"count": 4}})
    assert "part 3 of 4, and its name says 3 of 3" in message(paths[0])
    write_parts(tmp_path, make_tiny(), {0: {"tensors.count": 5}})
    assert "and the first states 5" in message(paths[0])
    write_parts(tmp_path, make_tiny())
    paths[1].write_bytes(make_tiny().write(tmp_path / "whole.gguf").read_bytes())
    assert "split.count' is missing" in message(paths[0])


def test_missing_and_renamed_parts(tmp_path: Path, make_tiny: Make) -> None:
    paths = write_parts(tmp_path, make_tiny())
    paths[1].unlink()
    assert "tiny-00002-of-00003.gguf is not beside it" in message(paths[0])
    assert "found by its name alone" in message(paths[0].rename(tmp_path / "other.gguf"))


def test_a_tensor_in_two_parts(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny()
    paths = write_parts(tmp_path, model)
    with GGUFWriter(paths[2]) as writer:
        writer.metadata("split.no", 2, ValueType.UINT16)
        writer.metadata("split.count", PARTS, ValueType.UINT16)
        shape, dtype, data = model.tensors["output_norm.weight"]
        for name in ("output_norm.weight", "token_embd.weight"):
            writer.tensor(name, shape, dtype, data.size)
        for name in ("output_norm.weight", "token_embd.weight"):
            writer.write(name, [data])
    assert "is in another part as well" in message(paths[0])


@pytest.mark.parametrize("value", [-1, 1 << 20, "3", np.array([3, 4], np.int32)])
def test_odd_counts(tmp_path: Path, make_tiny: Make, value: Any) -> None:
    model = make_tiny()
    model.keys["split.count"] = value
    assert "split.count' is" in message(model.write(tmp_path / "a.gguf"))
