"""Key-values of an odd shape in a sound file: read, or rejected with a message in our words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError, TokenizerError
from bitnet_core.formats.open import open_model
from bitnet_core.tokenizer import load_tokenizer

LONG = "\x1b[31mlong " * 10_000


@pytest.mark.parametrize("name", [np.arange(2), ["a", "b"], 7, True, "", LONG])
def test_general_name(tmp_path: Path, make_tiny: Callable[..., Any], name: object) -> None:
    tiny = make_tiny()
    tiny.keys["general.name"] = name
    path = tmp_path / "m.gguf"
    tiny.write(path)
    source = open_model(path)
    try:
        assert source.config.name == ("m" if not isinstance(name, str) or not name else LONG[:300])
    finally:
        source.close()


def test_messages_hold_little_of_the_file(tmp_path: Path, make_tiny: Callable[..., Any]) -> None:
    for key in ("general.architecture", "bitnet-b1.58.rope.scaling.type", "bitnet-b1.58.hidden_activation"):
        tiny = make_tiny()
        tiny.keys[key] = LONG
        tiny.write(tmp_path / "m.gguf")
        with pytest.raises(ModelError) as caught:
            open_model(tmp_path / "m.gguf")
        assert len(str(caught.value)) < 300 + len(str(tmp_path))
    with pytest.raises(TokenizerError) as refused:
        load_tokenizer({"kind": "gguf", "tokenizer.ggml.model": LONG})
    assert len(str(refused.value)) < 300
