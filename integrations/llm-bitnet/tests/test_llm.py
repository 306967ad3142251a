"""The plugin as llm loads it, with the model that ships."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import llm
import pytest


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LLM_USER_PATH": str(home)}
    command = [sys.executable, "-m", "llm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_a_prompt_streams_and_is_gone_on_with(tmp_path: Path) -> None:
    options = ("-o", "max_tokens", "12", "-o", "device", "cpu")
    first = run(tmp_path, "-m", "bitnet", "Tell me a story", "-s", "Be kind", *options)
    assert (first.returncode, len(first.stdout) > 10) == (0, True), first.stderr
    again = run(tmp_path, "-c", "And then?", *options)
    assert again.returncode == 0, again.stderr
    logged = json.loads(run(tmp_path, "logs", "-n", "0", "--json").stdout)
    tokens = sorted((entry["input_tokens"], entry["output_tokens"]) for entry in logged)
    assert [output for _, output in tokens] == [12, 12]
    assert tokens[1][0] > tokens[0][0] + 12  # the conversation is told again


def test_options_and_schemas() -> None:
    model = llm.get_model("bitnet")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    assert json.loads(model.prompt("A number", schema=schema, device="cpu", max_tokens=20).text())["n"] in (1, 2)
    texts = {model.prompt("Once", device="cpu", max_tokens=8, temperature=1.0, seed=seed).text() for seed in (1, 1, 2)}
    assert len(texts) == 2
    with pytest.raises(ValueError, match="temperature"):
        model.prompt("x", temperature=-1)


def test_the_engine_is_not_imported_early() -> None:
    heavy = "{'bitnet_core.api', 'bitnet_core.engine'}"
    code = f"import sys, llm; llm.get_model('bitnet'); assert {heavy}.isdisjoint(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
