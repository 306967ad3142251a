"""Texts that a limit ended: `bitnet run` says so, and JSON that is cut off is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bitnet_core.receipt_checks import verify_receipt

CUT = "stopped at the limit of"


def test_a_text_that_was_cut_off(bitnet) -> None:
    assert bitnet("run", "Once upon a time", "-n", 5, "-q").err == f"{CUT} 5 tokens (-n)\n"
    found = bitnet("run", "Once upon a time", "-c", 24, "-q", "-d", "numpy")
    assert (found.code, found.err) == (0, "stopped at the end of the context of 24 tokens (--context)\n")
    found = bitnet("run", "Once upon a time", "-n", 5, "--json")
    assert (json.loads(found.out)["finish_reason"], CUT in found.err) == ("length", True)


def test_a_text_that_ended_by_itself(bitnet) -> None:
    found = bitnet("run", "Once upon a time", "-n", 40, "--stop", " ", "-q")
    assert (found.code, found.err) == (0, "")


def test_json_that_is_not_whole(bitnet, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    schema, receipt = tmp_path / "schema.json", tmp_path / "receipt.json"
    schema.write_text('{"type": "object", "properties": {"name": {"type": "string", "minLength": 90}}}')
    ask = ("run", "A fox:", "--json-schema", schema, "-d", "numpy")
    found = bitnet(*ask, "-n", 12, "--receipt", receipt)
    assert found.code == 15
    assert found.out.startswith('{"name": "')
    assert f"error: the JSON is incomplete: {CUT} 12 tokens (-n)" in found.err
    assert verify_receipt(receipt)["tokens"]["generated"] == 12
    found = bitnet(*ask, "-n", 12, "--json")
    assert (found.code, json.loads(found.out)["finish_reason"]) == (15, "length")
    found = bitnet(*ask, "-n", 12, "--stop", '"')
    assert (found.code, "stop string" in found.err) == (15, True)


def test_json_that_ends_with_the_last_token(bitnet, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"n": {"enum": [12, 34]}}, "required": ["n"]}')
    ask = ("run", "Once", "--json-schema", schema, "-d", "numpy", "--json")
    needed = len(json.loads(bitnet(*ask).out)["tokens"])
    assert [bitnet(*ask, "-n", count).code for count in (needed, needed - 1)] == [0, 15]
