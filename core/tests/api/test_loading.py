"""Models that were closed, and files that change while they are used."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import bitnet_core
import pytest
from bitnet_core.api import Model
from bitnet_core.errors import ModelError
from bitnet_core.formats.open import open_model
from bitnet_hal.errors import UsageError

STORIES = Path(str(files("bitnet_core") / "data" / "stories.gguf"))

USES: dict[str, Callable[[Model], Any]] = {
    "generate": lambda model: model.generate("x"),
    "stream": lambda model: model.generate([1], stream=True),
    "chat": lambda model: model.chat([{"role": "user", "content": "x"}]),
    "logits": lambda model: model.logits([1, 2]),
    "perplexity": lambda model: model.perplexity("some text"),
    "stats": lambda model: model.stats(),
    "engine": lambda model: model.engine.memory(),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the shipped model."""
    copy = tmp_path / "m.gguf"
    copy.write_bytes(STORIES.read_bytes())
    return copy


def test_every_use_after_the_end_raises_the_same_error(path: Path) -> None:
    model = bitnet_core.load(path, "numpy")
    running = model.generate("Once", max_tokens=8, stream=True)
    next(running)
    engine = model.engine
    model.close()
    model.close()
    for use in USES.values():
        with pytest.raises(UsageError, match="the model is closed"):
            use(model)
    for call in (engine.step, lambda: engine.logits([1]), lambda: list(running)):
        with pytest.raises(UsageError, match="the model is closed"):
            call()
    with pytest.raises(ModelError, match="closed"):
        model.source.dense("token_embd")


def test_the_hash_is_that_of_what_was_opened(path: Path, tmp_path: Path) -> None:
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    source = open_model(path)
    other = tmp_path / "other"
    other.write_bytes(b"something else")
    other.replace(path)
    assert source.sha256() == expected
    path.unlink()
    assert source.sha256() == expected
    source.close()


def test_a_file_that_was_written_to_has_no_hash(path: Path) -> None:
    source = open_model(path)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelError, match="was modified while open"):
        source.sha256()
    source.close()


def test_a_file_that_was_read_as_a_whole_may_be_cut_off(path: Path) -> None:
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    with bitnet_core.load(path, "numpy", mmap=False) as model, bitnet_core.load(None, "numpy") as other:
        os.truncate(path, 100)
        assert model.generate("Once", max_tokens=4).tokens == other.generate("Once", max_tokens=4).tokens
        assert model.source.sha256() == expected
