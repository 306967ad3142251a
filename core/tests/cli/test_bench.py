"""`bitnet bench` and the synthetic models it can run on."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from bitnet_core.benchmark import bytes_per_token, read_bandwidth
from bitnet_core.errors import ModelError, UsageError
from bitnet_core.formats.synthetic import SHAPES, SyntheticSource
from bitnet_core.hal.device import DeviceType
from bitnet_core.profiling import profile
from bitnet_core.reference.device import NumpyDevice, numpy_info


def test_bench_reports_its_measurements(bitnet) -> None:
    result = bitnet("bench", "--synthetic", "tiny", "-p", 8, "-n", 4, "--repeat", 2, "--json")
    document = json.loads(result.out)
    assert (document["model"], document["device"]) == ("synthetic tiny", "numpy:0")
    assert (document["prompt_tokens"], document["generated_tokens"], len(document["decode_speeds"])) == (8, 4, 2)
    for name in ("load_seconds", "prefill_speed", "decode_speed", "host_memory", "kv_memory", "read_bandwidth"):
        assert document[name] > 0
    expected = document["decode_speed"] * document["bytes_per_token"] / document["read_bandwidth"]
    assert document["bandwidth_fraction"] == pytest.approx(expected)


def test_profile_times_every_launch_of_a_step(bitnet, tmp_path) -> None:
    trace = tmp_path / "trace.json"
    arguments = ("bench", "--synthetic", "tiny", "-p", 40, "-n", 8, "--repeat", 1)
    result = bitnet(*arguments, "--profile", trace)
    for heading in ("greedy decode, 1 rows", "prompt, 40 rows", "of the bandwidth"):
        assert heading in result.out
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    decode, prompt = ([event for event in events if event["tid"] == track] for track in (0, 1))
    # embed, final norm, head and argmax, and nine launches in each of two layers, gate and up apart, q, k and v too
    assert [len(decode), len(prompt)] == [30, 27]
    assert all(event["dur"] > 0 and event["args"]["bytes"] > 0 for event in events)
    starts = [event["ts"] for event in decode]
    assert starts == sorted(starts)
    assert bitnet(*arguments, "--profile", tmp_path).code != 0  # a folder


def test_profile_of_a_device_without_a_clock() -> None:
    class Engine:
        device = NumpyDevice(replace(numpy_info(), features=frozenset()))

    with pytest.raises(UsageError, match="does not time"):
        profile(Engine())


def test_several_texts_share_the_weights(bitnet) -> None:
    arguments = ("bench", "--synthetic", "tiny", "-p", 40, "-n", 6, "--repeat", 1, "--json")
    one, four = (json.loads(bitnet(*arguments, "-s", count).out) for count in (1, 4))
    assert (four["sequences"], four["generated_tokens"]) == (4, 6)
    assert four["decode_speed"] > 0
    assert one["bytes_per_token"] / 4 < four["bytes_per_token"] < one["bytes_per_token"]


def test_texts_that_do_not_fit(bitnet) -> None:
    result = bitnet("bench", "--synthetic", "tiny", "-p", 8, "-n", 4, "-s", 33)
    assert result.code != 0
    assert "do not fit the cache" in result.err


def test_bench_as_a_table(bitnet) -> None:
    result = bitnet("bench", "-p", 4, "-n", 2, "--repeat", 1)
    assert result.code == 0
    for name in ("stories", "prefill", "decode", "read per token"):
        assert name in result.out


def test_the_default_prompt_fits_a_short_context(bitnet) -> None:
    document = json.loads(bitnet("bench", "--context", 12, "-n", 2, "--repeat", 1, "--json").out)
    assert (document["prompt_tokens"], document["generated_tokens"]) == (10, 2)


def test_bytes_per_token_of_2b4t() -> None:
    config = SHAPES["2b4t"]
    head = config.vocab * config.hidden * 2
    # 30 layers of 2 * 2560^2 + 2 * 640 * 2560 + 3 * 6912 * 2560 weights, four in a byte
    ternary = 30 * (2 * 2560**2 + 2 * 640 * 2560 + 3 * 6912 * 2560) // 4
    assert bytes_per_token(config, head, "f16", 0) == ternary + head
    assert bytes_per_token(config, head, "f16", 10) == ternary + head + 30 * 10 * 2 * 5 * 128 * 2


def test_bandwidth_of_a_gpu_is_measured_by_copies() -> None:
    device = NumpyDevice(replace(numpy_info(), type=DeviceType.GPU))
    assert read_bandwidth(device) > 0


@pytest.mark.parametrize("shape", SHAPES)
def test_synthetic_shapes(shape: str) -> None:
    source = SyntheticSource(shape)
    config = source.config
    for name, (rows, columns) in config.linears().items():
        weight = source.ternary(f"blk.0.{name}")
        assert (weight.rows, weight.columns, weight.codes.shape) == (rows, columns, (rows, weight.width // 4))
        codes = np.concatenate([weight.codes.ravel()[:4096] >> shift & 3 for shift in (0, 2, 4, 6)])
        assert set(np.unique(codes)) == {0, 1, 2}
    assert source.vector("blk.1.ffn_sub_norm").shape == (config.ffn,)
    assert len(source.tokenizer["tokenizer.ggml.tokens"]) == config.vocab
    assert len(source.tensors) == 7 * config.n_layers + 1
    assert not source.has("rope_freqs")
    assert not source.has("output")
    with pytest.raises(ModelError):
        source.ternary("blk.0.attn_x")
    with pytest.raises(ModelError):
        source.vector("rope_freqs")
    with pytest.raises(ModelError):
        source.dense("output")


def test_synthetic_weights_are_the_same_every_time() -> None:
    first, second = SyntheticSource("tiny"), SyntheticSource("tiny")
    assert np.array_equal(first.dense("token_embd").data, second.dense("token_embd").data)
    assert first.sha256() == second.sha256()
