"""`bitnet bench` and the synthetic models it can run on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.cli.bench_tables import share_of
from bitnet_core.errors import ModelError
from bitnet_core.formats.names import floats, matrices, tables, ternaries, vectors
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.measure.profiling import KernelTime, StepProfile
from bitnet_core.measure.server import ServerResult, TimedAnswer
from bitnet_hal.device import TransferMode
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice


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
    for heading in ("greedy decode, 1 rows", "prompt, 40 rows", "least", "mean", "most", "of the bandwidth"):
        assert heading in result.out
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    decode, prompt = ([event for event in events if event["tid"] == track] for track in (0, 1))
    # embed, final norm, head and argmax, and nine launches in each of two layers, gate and up apart, q, k and v too
    assert [len(decode), len(prompt)] == [30, 27]
    assert all(event["dur"] > 0 and event["args"]["bytes"] > 0 for event in events)
    starts = [event["ts"] for event in decode]
    assert starts == sorted(starts)
    assert bitnet(*arguments, "--profile", tmp_path).code != 0  # a folder


def test_no_share_is_above_what_memory_can_give() -> None:
    assert share_of(5.98e9, 1e9) == "in cache"
    assert share_of(0.5e9, 1e9) == "50%"
    assert share_of(1e9, 1e9) == "100%"


def test_launches_of_a_kernel_are_summed_up() -> None:
    launches = [KernelTime("a", 1, seconds, 10, seconds, seconds) for seconds in (0.25, 0.5, 2.25)]
    step = StepProfile("step", (*launches, KernelTime("b", 1, 1.0, 1, 1.0, 1.0)))
    first, second = step.kernels()
    assert (first.kernel, first.launches, first.seconds, first.nbytes) == ("a", 3, 3.0, 30)
    assert (first.least, first.mean, first.most) == (0.25, 1.0, 2.25)
    assert (second.least, second.mean, second.most) == (1.0, 1.0, 1.0)


@pytest.fixture
def everything_joined(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """A numpy device that offers all optional kernels; counts what it runs."""
    optional = frozenset(spec.name for spec in CATALOGUE.values() if not spec.base)
    info = replace(numpy_info(), kernels=optional, transfer=TransferMode.EXPLICIT_COPY)
    monkeypatch.setattr("bitnet_hal.reference.describe.numpy_info", lambda: info)
    ran: Counter[str] = Counter()
    run = NumpyDevice._run

    def counted(self: NumpyDevice, launch: Any) -> None:
        ran[launch.kernel.spec.name] += 1
        run(self, launch)

    monkeypatch.setattr(NumpyDevice, "_run", counted)
    return ran


def test_profile_names_what_a_fused_device_runs(bitnet, tmp_path, everything_joined: Counter[str]) -> None:
    trace = tmp_path / "trace.json"
    options = ("-p", 40, "-n", 8, "--repeat", 1, "--profile", trace)
    result = bitnet("bench", "--synthetic", "tiny", *options)
    assert result.code == 0, result.err
    named = Counter(e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X")
    assert named["decoder_layer"] == 2  # one for each layer of the decoding step
    assert set(named) <= set(everything_joined)


def test_counters_name_what_a_fused_device_runs(everything_joined: Counter[str], make_engine, run_all) -> None:
    engine = make_engine("silu")
    engine.add_request([1, 2, 3], max_tokens=5)
    run_all(engine)
    assert engine.kernel_launches == everything_joined
    assert engine.kernel_launches["decoder_layer"] > 0


@pytest.mark.parametrize("factor", [1e-6, 1e4])
def test_a_clock_that_cannot_be_believed(bitnet, tmp_path, monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    right = NumpyDevice._timings
    monkeypatch.setattr(NumpyDevice, "_timings", lambda self, r: [factor * s for s in right(self, r)])
    arguments = ("bench", "--synthetic", "tiny", "-p", 8, "-n", 4, "--repeat", 1, "--profile", tmp_path / "t.json")
    result = bitnet(*arguments)
    assert result.code == 1
    assert "its clock is wrong" in result.err
    assert not (tmp_path / "t.json").exists()


def test_several_texts_share_the_weights(bitnet) -> None:
    arguments = ("bench", "--synthetic", "tiny", "-p", 40, "-n", 6, "--repeat", 1, "--json")
    one, four = (json.loads(bitnet(*arguments, "-s", count).out) for count in (1, 4))
    assert (four["sequences"], four["generated_tokens"]) == (4, 6)
    assert four["decode_speed"] > 0
    assert one["bytes_per_token"] / 4 < four["bytes_per_token"] < one["bytes_per_token"]


def test_texts_that_do_not_fit(bitnet) -> None:
    arguments = ("bench", "--synthetic", "tiny", "-s", 40, "-p", 60, "-n", 20, "--repeat", 1)
    assert bitnet(*arguments).code == 0  # more than 32 texts need no option
    result = bitnet(*arguments, "--kv-cache-size", "512K")
    assert result.code == 2
    assert "40 requests of 60 + 20 tokens do not fit" in result.err


def test_bench_as_a_table(bitnet) -> None:
    result = bitnet("bench", "-p", 4, "-n", 2, "--repeat", 1)
    assert result.code == 0
    for name in ("stories", "prefill", "decode", "read per token"):
        assert name in result.out


def test_what_a_server_calls_its_model_is_never_markup(bitnet, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (TimedAnswer(first=0.1, last=0.2, tokens=5),)
    result = ServerResult("http://host", "[red]a[/nosuch]\x1b[31m", 1, answers, 1.0)
    monkeypatch.setattr("bitnet_core.measure.server.measure_server", lambda *_: result)
    shown = bitnet("bench", "--server", "http://host")
    assert shown.code == 0
    assert "[red]a[/nosuch][31m at http://host" in shown.out


def test_the_default_prompt_fits_a_short_context(bitnet) -> None:
    document = json.loads(bitnet("bench", "--context", 12, "-n", 2, "--repeat", 1, "--json").out)
    assert (document["prompt_tokens"], document["generated_tokens"]) == (10, 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_synthetic_shapes(shape: str) -> None:
    source = SyntheticSource(shape)
    config = source.config
    for name, (rows, columns) in config.linears(0).items():
        weight = source.ternary(f"blk.0.{name}")
        assert (weight.rows, weight.columns, weight.codes.shape) == (rows, columns, (rows, weight.width // 4))
        codes = np.concatenate([weight.codes.ravel()[:4096] >> shift & 3 for shift in (0, 2, 4, 6)])
        assert set(np.unique(codes)) == {0, 1, 2}
    for name, width in vectors(config).items():
        assert source.vector(name).shape == (width,)
    for name, (rows, columns) in tables(config).items():
        assert source.has(name)
        if config.ternary_tables:
            weight = source.ternary(name)
            assert (weight.scale_kind, weight.block) == ("block", 128)
            assert weight.codes.shape == (rows, columns // 4)
            assert weight.scales.shape == (rows, columns // 128)
    assert len(source.tokenizer["tokenizer.ggml.tokens"]) == config.vocab
    for name, (rows, columns) in floats(config).items():
        assert (source.dense(name).rows, source.dense(name).columns) == (rows, columns)
    assert len(source.tensors) == len(matrices(config)) + len(tables(config)) + len(floats(config))
    assert not source.has("rope_freqs")
    assert source.has("output") is not config.tied_head
    with pytest.raises(ModelError):
        source.ternary("blk.0.attn_x")
    with pytest.raises(ModelError):
        source.vector("rope_freqs")
    with pytest.raises(ModelError):
        source.dense("attn_x")


def test_the_bonsai_shapes_have_the_sizes_of_the_published_files() -> None:
    """Bytes of Q2_0 in blocks of 128 (codes and f16 scales), in MiB; the norms are the rest."""
    for shape, size in (("bonsai-8b", 2074.8), ("bonsai-4b", 1018.9), ("bonsai-1.7b", 435.8)):
        found = sum(34 * rows * columns // 128 for rows, columns in ternaries(SHAPES[shape]).values())
        assert found / 2**20 == pytest.approx(size, rel=2e-3)


def test_synthetic_weights_are_the_same_every_time() -> None:
    first, second = SyntheticSource("tiny"), SyntheticSource("tiny")
    assert np.array_equal(first.dense("token_embd").data, second.dense("token_embd").data)
    assert first.sha256() == second.sha256()


def test_several_devices(bitnet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda,rocm")
    arguments = ("bench", "--synthetic", "tiny", "-d", "cuda:0,rocm:0", "-p", 8, "-n", 4, "-s", 2, "--repeat", 1)
    found = json.loads(bitnet(*arguments, "--json").out)
    assert [one["device"] for one in found["devices"]] == ["cuda:0", "rocm:0"]
    for speed in ("prefill", "decode", "whole"):
        for when in ("alone", "together"):
            assert found["sum"][when][speed] == pytest.approx(sum(one[when][speed] for one in found["devices"]))
            assert min(one[when][speed] for one in found["devices"]) > 0
    assert found["share"] == pytest.approx(found["sum"]["together"]["whole"] / found["sum"]["alone"]["whole"])
    assert found["share_of_processors"] == found["share"]  # each device has its own
    shown = bitnet(*arguments)
    assert (shown.code, "rocm:0 (fake rocm device (numpy))" in shown.out, "sum" in shown.out) == (0, True, True)
    assert bitnet(*arguments, "--profile", tmp_path / "trace.json").code == 2
    assert "no device cuda:3" in bitnet("bench", "--synthetic", "tiny", "-d", "cuda:0,cuda:3").err


@pytest.mark.usefixtures("everything_joined")
def test_the_layers_of_ten_requests_are_offered_to_the_device_as_wholes(monkeypatch, make_engine, run_all) -> None:
    sizes: set[int] = set()
    run = NumpyDevice._run

    def sized(self: NumpyDevice, launch: Any) -> None:
        if launch.kernel.spec.name == "decoder_layer":
            sizes.add(launch.kernel.spec.unpack(launch.params)["rows"])
        run(self, launch)

    monkeypatch.setattr(NumpyDevice, "_run", sized)
    engine = make_engine("silu", max_sequences=10)
    for first in range(10):
        engine.add_request([1, 2, 3 + first], max_tokens=4)
    run_all(engine)
    assert max(sizes) >= 10
