"""The commands on a tiny Qwen3 model, whose embedding and head are ternary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

QWEN3 = Path(__file__).parents[1] / "golden" / "qwen3"
MODEL = QWEN3 / "qwen3-untied" / "PQ2_0.gguf"
NUMPY = ("-m", MODEL, "-d", "numpy")


def test_run_prints_how_tokens_are_chosen(bitnet) -> None:
    found = bitnet("run", "Hello", *NUMPY, "-n", 8, "--seed", 1, "--json")
    assert found.code == 0
    assert "temperature 0.6, top-k 20, top-p 0.95" in found.err
    assert 0 < len(json.loads(found.out)["tokens"]) <= 8
    greedy = [bitnet("run", "Hello", *NUMPY, "-n", 8, "--temperature", 0).out for _ in range(2)]
    assert greedy[0] == greedy[1] != ""


def test_chat(bitnet) -> None:
    found = bitnet("chat", *NUMPY, "-n", 4, "--temperature", 0, "--no-think", stdin=b"hi\n/exit\n")
    assert found.code == 0, found.err


def test_inspect(bitnet) -> None:
    found = json.loads(bitnet("inspect", MODEL, "--json").out)
    assert found["config"]["arch"] == "qwen3"
    assert found["config"]["ternary_tables"]


def test_a_converted_model_says_the_same(bitnet, tmp_path: Path) -> None:
    assert bitnet("convert", MODEL, tmp_path / "a.gguf", "--to", "q2_0", "--verify").code == 0
    said = [
        bitnet("run", "Hello", "-m", model, "-d", "numpy", "-n", 8, "--temperature", 0).out
        for model in (MODEL, tmp_path / "a.gguf")
    ]
    assert said[0] == said[1]


def test_perplexity_is_that_of_float_activations_nearly(bitnet) -> None:
    rounded, exact = (
        float(bitnet("perplexity", "-", *NUMPY, *more, stdin=b"Once upon a time there was a little dog.").out)
        for more in ((), ("--float-activations",))
    )
    assert rounded != exact
    assert abs(rounded / exact - 1) < 0.1


@pytest.mark.parametrize("model", [("-m", MODEL), ("--synthetic", "bonsai-tiny")])
def test_bench(bitnet, model: tuple[object, ...]) -> None:
    found = json.loads(bitnet("bench", *model, "-d", "numpy", "-p", 8, "-n", 4, "--repeat", 1, "--json").out)
    assert found["generated_tokens"] == 4
    assert found["decode_speed"] > 0
