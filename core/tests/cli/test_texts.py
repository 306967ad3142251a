"""Texts as programs of several systems write them: byte order marks, line breaks, UTF-16."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.json_file import read_object
from bitnet_hal.errors import UsageError
from bitnet_hal.settings import setting
from bitnet_hal.text_files import decoded

PROMPT = "Once upon a time"
SAME: list[Callable[[str], bytes]] = [
    lambda text: b"\xef\xbb\xbf" + text.encode(),
    lambda text: f"{text}\n".encode(),
    lambda text: b"\xef\xbb\xbf" + f"{text}\r\n".encode(),
]
OTHER = ["utf-16", "utf-16-le", "utf-16-be", "latin-1"]


@pytest.mark.parametrize("written", SAME)
def test_a_prompt_is_its_text(bitnet, written: Callable[[str], bytes]) -> None:
    ask = ("run", "-", "-n", 3, "-d", "numpy", "--json")
    plain, found = (json.loads(bitnet(*ask, stdin=raw).out) for raw in (PROMPT.encode(), written(PROMPT)))
    assert (found["prompt_tokens"], found["tokens"]) == (plain["prompt_tokens"], plain["tokens"])


@pytest.mark.parametrize("written", SAME)
def test_perplexity_is_of_the_text(bitnet, tmp_path: Path, written: Callable[[str], bytes]) -> None:
    text = "Once upon a time there was a fox.\nHe was red."
    (tmp_path / "text").write_bytes(written(text.replace("\n", "\r\n")))
    plain = bitnet("perplexity", "-", "-d", "numpy", stdin=text.encode()).out
    assert bitnet("perplexity", tmp_path / "text", "-d", "numpy").out == plain != ""


@pytest.mark.parametrize("written", SAME)
def test_files_of_settings_schemas_and_models(
    bitnet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Callable[[str], bytes]
) -> None:
    (tmp_path / "config.toml").write_bytes(written('device = "numpy"'))
    monkeypatch.setenv("BITNET_CONFIG", str(tmp_path / "config.toml"))
    assert setting("device") == "numpy"
    (tmp_path / "config.json").write_bytes(written('{"a": 1}'))
    assert read_object(tmp_path / "config.json") == {"a": 1}
    pytest.importorskip("llguidance")
    (tmp_path / "schema.json").write_bytes(written('{"type": "boolean"}'))
    assert bitnet("run", "x", "--json-schema", tmp_path / "schema.json").out in ("true\n", "false\n")


def test_messages_of_a_chat(bitnet) -> None:
    plain, marked = (bitnet("chat", "-n", 3, "-d", "numpy", stdin=raw).out for raw in (b"hi\n", b"\xef\xbb\xbfhi\r\n"))
    assert plain == marked != ""


@pytest.mark.parametrize("encoding", OTHER)
def test_other_encodings_are_named(bitnet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw = "café".encode(encoding)
    expected = "UTF-8 text: byte 3" if encoding == "latin-1" else "is UTF-16 text: save it as UTF-8"
    with pytest.raises(ValueError, match=expected):
        decoded(raw)
    path = tmp_path / "file"
    path.write_bytes(raw)
    for found in (bitnet("run", "-", stdin=raw), bitnet("perplexity", path), bitnet("run", "x", "--json-schema", path)):
        assert (found.code, expected in found.err) == (2, True)
    with pytest.raises(ModelError, match=expected):
        read_object(path)
    monkeypatch.setenv("BITNET_CONFIG", str(path))
    with pytest.raises(UsageError, match=expected):
        setting("device")


def test_the_place_of_a_wrong_byte_counts_the_mark() -> None:
    with pytest.raises(ValueError, match="byte 4"):
        decoded(b"\xef\xbb\xbfa\xff")
