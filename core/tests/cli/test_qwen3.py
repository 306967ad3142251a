"""The commands on a tiny Qwen3 model, whose embedding and head are ternary, and on one with delta nets."""

from __future__ import annotations

import json
from pathlib import Path

import bitnet_core
import pytest

QWEN3 = Path(__file__).parents[1] / "golden" / "qwen3"
MODEL = QWEN3 / "qwen3-untied" / "PQ2_0.gguf"
HYBRID = QWEN3.parent / "bonsai2" / "rotated-PTQ1_0.gguf"
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


@pytest.mark.parametrize(
    "model", [("-m", MODEL), ("-m", HYBRID), ("--synthetic", "bonsai-tiny"), ("--synthetic", "bonsai2-tiny")]
)
def test_bench(bitnet, model: tuple[object, ...]) -> None:
    found = json.loads(bitnet("bench", *model, "-d", "numpy", "-p", 8, "-n", 4, "--repeat", 1, "--json").out)
    assert found["generated_tokens"] == 4
    assert found["decode_speed"] > 0


def test_a_scale_for_128_columns(bitnet) -> None:
    """Every command that has the option computes with it, or says why not."""
    wide = ("--activation-group-size", 128)
    with bitnet_core.load(MODEL, "numpy", activation_group_size=128) as model:
        expected = model.generate("Hello", max_tokens=8, temperature=0)
    said = json.loads(bitnet("run", "Hello", "--raw", *NUMPY, *wide, "-n", 8, "--temperature", 0, "--json").out)
    assert said["tokens"] == list(expected.tokens)
    assert bitnet("chat", *NUMPY, *wide, "-n", 4, "--temperature", 0, "--no-think", stdin=b"hi\n/exit\n").code == 0
    text = b"Once upon a time there was a little dog."
    assert len({bitnet("perplexity", "-", *NUMPY, *more, stdin=text).out for more in ((), wide)}) == 2
    for more, block in (((), 32), (wide, 128)):
        found = bitnet("bench", *NUMPY, *more, "-p", 8, "-n", 4, "--repeat", 1, "--json")
        assert json.loads(found.out)["activation_group_size"] == block
    refused = bitnet("run", "Hello", "-d", "numpy", *wide)
    assert (refused.code, "trained with one scale a row" in refused.err) == (2, True)


def test_a_model_with_delta_nets(bitnet) -> None:
    """Every command does its part, or says that it does not."""
    on_numpy = ("-m", HYBRID, "-d", "numpy")
    found = bitnet("run", "Hello", *on_numpy, "-n", 6, "--temperature", 0, "--json")
    assert (found.code, len(json.loads(found.out)["tokens"])) == (0, 6)
    assert bitnet("chat", *on_numpy, "-n", 4, "--temperature", 0, "--no-think", stdin=b"hi\nand\n/exit\n").code == 0
    shown = bitnet("inspect", HYBRID).out
    assert "1 of the layers, 6 value heads of 64, 2 key heads of 64, convolution over 4" in shown
    assert "Hadamard, blocks of 128 columns" in shown
    assert float(bitnet("perplexity", "-", *on_numpy, stdin=b"Once upon a time there was a little dog.").out) > 1


@pytest.mark.parametrize("target", ["pq2_0", "q2_0", "i2_s", "safetensors", "mlx"])
def test_a_model_with_delta_nets_is_not_converted(bitnet, tmp_path: Path, target: str) -> None:
    found = bitnet("convert", HYBRID, tmp_path / "x", "--to", target)
    assert (found.code, list(tmp_path.iterdir())) == (2, [])
    assert "models with gated delta nets (architecture qwen35) can be run but not converted" in found.err


def test_a_backend_without_the_kernels_is_passed_over_or_refused(
    bitnet, install_plugin, caplog: pytest.LogCaptureFixture
) -> None:
    """`auto` takes the next device and says why; a backend that was named is an error, and nothing else is tried."""
    install_plugin(
        "bare",
        """
        from dataclasses import replace
        from bitnet_hal.device import DeviceType
        from bitnet_hal.reference.describe import numpy_info
        from bitnet_hal.reference.device import NumpyDevice
        def info():
            return replace(numpy_info(), backend="bare", name="Bare", type=DeviceType.GPU, kernels=frozenset({"top_k"}))
        Backend.devices = lambda self: [info()]
        Backend.open = lambda self, index: NumpyDevice(info())
        """,
    )
    words = "cannot run models of architecture qwen35: it lacks the kernels causal_conv1d, gated_delta_rule"
    found = bitnet("run", "Hello", "-m", HYBRID, "-n", 2)
    assert found.code == 0, found.err
    assert "on numpy:0" in found.err
    assert f"bare:0 failed (bare Bare: {words}" in caplog.text
    named = bitnet("run", "Hello", "-m", HYBRID, "-n", 2, "-d", "bare")
    assert (named.code, named.out) == (1, "")
    assert words in named.err
