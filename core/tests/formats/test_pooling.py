"""The pooling of embedding models, from GGUF's key and from the files of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.keys import MetadataReader
from bitnet_core.formats.pooling import pooling_number, pooling_of_folder, pooling_of_gguf
from bitnet_core.model.config import Pooling

MODULES = ("Transformer", "Pooling", "Normalize")
MODULE = "sentence_transformers.models."


def write(folder: Path, pooling: Any, modules: tuple[str, ...] = MODULES, path: str = "1_Pooling") -> Path:
    listed = [{"idx": 0, "path": path, "type": MODULE + kind} for kind in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def of_gguf(number: Any, projection_norms: bool = False) -> Pooling | None:
    values = {} if number is None else {"qwen3.pooling_type": number}
    return pooling_of_gguf(Path("a.gguf"), MetadataReader(Path("a.gguf"), values, "qwen3."), projection_norms)[0]


@pytest.mark.parametrize(
    ("number", "mode"), [(None, None), (0, None), (1, "mean"), (2, "cls"), (3, "last")], ids=lambda value: str(value)
)
def test_gguf_numbers_the_modes(number: Any, mode: Any) -> None:
    assert of_gguf(number) == (None if mode is None else Pooling(mode))


def test_a_model_with_projection_norms_is_pooled_at_the_last_token_and_says_so(tmp_path: Path) -> None:
    assert of_gguf(None, projection_norms=True) == Pooling("last")
    pooling, (finding,) = pooling_of_folder(tmp_path, projection_norms=True)
    assert (pooling, finding.code) == (Pooling("last"), "pooling-assumed")
    assert pooling_of_folder(tmp_path, projection_norms=False) == (None, [])


@pytest.mark.parametrize(("number", "words"), [(4, "reranker"), (9, "unknown"), ("3", "not a whole number")])
def test_other_values_are_refused(number: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        of_gguf(number)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_mean_tokens": True, "include_prompt": True}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_a_folder_states_its_mode(tmp_path: Path, config: dict[str, Any], mode: Any) -> None:
    assert pooling_of_folder(write(tmp_path, config), projection_norms=False) == (Pooling(mode), [])
    without = write(tmp_path, config, ("Transformer", "Pooling"))
    assert pooling_of_folder(without, projection_norms=False)[0] == Pooling(mode, normalize=False)


@pytest.mark.parametrize(
    ("config", "modules", "path", "words"),
    [
        ({"pooling_mode_max_tokens": True}, MODULES, "1_Pooling", "max_tokens"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, MODULES, "1_Pooling", "not supported"),
        ({}, MODULES, "1_Pooling", "only mean, cls and lasttoken"),
        ({"pooling_mode": "lasttoken"}, (*MODULES, "Dense"), "1_Pooling", "Dense"),
        ({"pooling_mode": "lasttoken"}, MODULES, "../elsewhere", "not the name of a folder"),
        ({"pooling_mode": "lasttoken"}, MODULES, "..", "not the name of a folder"),
    ],
)
def test_other_modules_and_modes_are_refused(
    tmp_path: Path, config: Any, modules: tuple[str, ...], path: str, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        pooling_of_folder(write(tmp_path, config, modules, path), projection_norms=True)


def test_modules_must_be_a_list(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(ModelError, match="JSON list"):
        pooling_of_folder(tmp_path, projection_norms=False)


def test_gguf_cannot_say_that_vectors_are_not_normalized() -> None:
    assert pooling_number(Path("a"), Pooling("last")) == 3
    with pytest.raises(ModelError, match="does not normalize"):
        pooling_number(Path("a"), Pooling("last", normalize=False))
