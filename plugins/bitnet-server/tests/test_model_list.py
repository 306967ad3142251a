"""The models that the options of `bitnet serve` name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bitnet_core.hub
import pytest
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.loading import LoadOptions
from bitnet_hal.errors import UsageError
from bitnet_server.model_list import ListedModel, Sources, listed_models


def listed(*models: str, sources: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> list[ListedModel]:
    engine = EngineOptions(context=512)
    return listed_models(Sources(models, sources), names, "numpy", LoadOptions(), engine)


def test_a_single_model_has_its_own_name_or_the_given_ones() -> None:
    (shipped,) = listed()
    assert (shipped.model, shipped.names, shipped.device) == (None, (), "numpy")
    (one,) = listed("a.gguf", names=("x", "y"))
    assert (one.model, one.names) == ("a.gguf", ("x", "y"))


def test_several_models_are_named_after_their_files(tmp_path: Path) -> None:
    file = tmp_path / "tiny-00001-of-00002.gguf"
    for part in (file, tmp_path / "tiny-00002-of-00002.gguf"):
        part.write_bytes(b"x" * 5)
    found = listed(str(file), "hf:org/model:a.gguf", "stories")
    assert [one.names for one in found] == [("tiny",), ("org/model:a.gguf",), ("stories",)]
    assert [one.nbytes for one in found] == [10, None, None]
    with pytest.raises(UsageError, match="two models have the name stories"):
        listed("stories", "stories")
    with pytest.raises(UsageError, match="--alias names a single model"):
        listed("a", "b", names=("x",))


def test_a_folder_has_models_in_it_and_in_its_folders(tmp_path: Path) -> None:
    (tmp_path / "a-i2_s.gguf").write_bytes(b"x")
    (tmp_path / "mmproj-a.gguf").write_bytes(b"x")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"xyz")
    found = listed(sources=(str(tmp_path),))
    assert [(one.names, one.model) for one in found] == [
        (("a-i2_s",), str(tmp_path / "a-i2_s.gguf")),
        (("hf",), str(tmp_path / "hf")),
    ]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="there are no models"):
        listed(sources=(str(empty),))


def test_the_cache_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    cached: Any = SimpleNamespace(reference="hf:org/model", path=Path("/cache/m.gguf"), nbytes=7)
    monkeypatch.setattr(bitnet_core.hub, "cached_models", lambda: [cached])
    (one,) = listed(sources=("hub",))
    assert (one.names, one.model, one.nbytes) == (("org/model",), str(cached.path), 7)


def test_a_file_gives_each_model_options_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(b"x" * 3)
    tables = tmp_path / "models.toml"
    tables.write_text(
        """
        [stories]

        ["org/big"]
        model = "small.gguf"
        alias = ["gpt-4o"]
        device = "cuda:1"
        pinned = true
        context = 4096
        kv_cache_size = "2G"
        layout = "B"
        """
    )
    stories, big = listed(sources=(str(tables),))
    assert (stories.model, stories.names, stories.device, stories.engine.context) == (
        "stories",
        ("stories",),
        "numpy",
        512,
    )
    assert (big.model, big.names, big.device) == (str(tmp_path / "small.gguf"), ("org/big", "gpt-4o"), "cuda:1")
    assert (big.pinned, big.nbytes, big.loading.layout) == (True, 3, "B")
    assert (big.engine.context, big.engine.kv_cache_size) == (4096, 2 << 30)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a = ", "is not TOML"),
        ("a = 1", "'a' is not a table"),
        ("[a]\ncontxt = 1", "no option 'contxt'; there are activation_group_size, alias, context"),
        ("[a]\ncontext = 'x'", r"\[a\]: context must be a whole number"),
        ("[a]\npinned = 1", "pinned must be True or False"),
        ("[a]\nkv_cache_size = 'x'", "not a valid size"),
        ("", "there are no models"),
    ],
)
def test_a_file_that_is_not_valid(tmp_path: Path, content: str, message: str) -> None:
    tables = tmp_path / "models.toml"
    tables.write_text(content)
    with pytest.raises(UsageError, match=message):
        listed(sources=(str(tables),))
