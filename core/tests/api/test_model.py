"""The Python API on the model that ships with the package."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import bitnet_core
import numpy as np
import pytest
from bitnet_core.api import loading
from bitnet_core.errors import ModelError, TokenizerError
from bitnet_core.formats.i2_s_layout.self_test import SELF_TEST_TEXT
from bitnet_hal.device import MemoryKind
from bitnet_hal.discovery import selection
from bitnet_hal.discovery.registry import registry
from bitnet_hal.errors import BitnetError, DeviceLostError, DeviceNotFoundError, OutOfMemoryError, UsageError
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.rounding import ceil_div

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def model() -> Iterator[bitnet_core.Model]:
    registry.cache_clear()
    with bitnet_core.load(None, "numpy") as loaded:
        yield loaded


def test_pieces_joined_are_the_text(model: bitnet_core.Model) -> None:
    whole = model.generate(PROMPT, max_tokens=24)
    stream = model.generate(PROMPT, max_tokens=24, stream=True)
    chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == stream.result.text == whole.text
    assert tuple(chunk.token for chunk in chunks if chunk.token is not None) == stream.result.tokens == whole.tokens
    assert len(whole.tokens) == 24
    assert whole.finish_reason == "length"
    assert whole.prompt_tokens == len(model.tokenizer.encode(PROMPT, add_bos=model.tokenizer.add_bos))
    assert whole.prefill_seconds > 0
    assert whole.decode_seconds > 0


def test_token_prompts_are_taken_as_they_are(model: bitnet_core.Model) -> None:
    tokens = model.tokenizer.encode(PROMPT, add_bos=model.tokenizer.add_bos)
    assert model.generate(tokens, max_tokens=8).tokens == model.generate(PROMPT, max_tokens=8).tokens


def test_the_text_is_what_the_logits_say(model: bitnet_core.Model) -> None:
    prompt = model.tokenizer.encode(PROMPT, add_bos=model.tokenizer.add_bos)
    tokens = list(model.generate(prompt, max_tokens=16).tokens)
    logits = model.logits(prompt + tokens)
    assert logits.shape == (len(prompt) + 16, model.config.vocab)
    assert logits[len(prompt) - 1 : -1].argmax(axis=1).tolist() == tokens


def test_stop_strings_do_not_leak(model: bitnet_core.Model) -> None:
    text = model.generate(PROMPT, max_tokens=24).text
    stop = text[10:14]
    stream = model.generate(PROMPT, max_tokens=24, stream=True, stop=[stop, "never seen"])
    chunks = [chunk.text for chunk in stream]
    assert "".join(chunks) == stream.result.text == text[: text.index(stop)]
    assert stream.result.finish_reason == "stop"


def test_a_held_back_end_comes_out_in_the_last_piece(model: bitnet_core.Model) -> None:
    text = model.generate(PROMPT, max_tokens=24).text
    assert model.generate(PROMPT, max_tokens=24, stop=text[-3:] + "never").text == text


def test_stop_ids(model: bitnet_core.Model) -> None:
    tokens = model.generate(PROMPT, max_tokens=24).tokens
    result = model.generate(PROMPT, max_tokens=24, stop_token_ids=[tokens[12]])
    assert result.tokens == tokens[: tokens.index(tokens[12])]
    assert result.finish_reason == "stop"


def test_same_seed_same_text(model: bitnet_core.Model) -> None:
    def text(seed: int | None) -> str:
        return model.generate(PROMPT, max_tokens=16, temperature=1.0, top_p=0.95, seed=seed).text

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(3)}) > 1
    drawn = model.generate(PROMPT, max_tokens=16, temperature=1.0, top_k=40)
    again = model.generate(PROMPT, max_tokens=16, temperature=1.0, top_k=40, seed=drawn.seed)
    assert again.text == drawn.text


def test_streams_may_run_side_by_side(model: bitnet_core.Model) -> None:
    prompts = [PROMPT, "The little dog"]
    expected = [model.generate(prompt, max_tokens=20).text for prompt in prompts]
    streams = [model.generate(prompt, max_tokens=20, stream=True) for prompt in prompts]
    for _ in itertools.zip_longest(*streams):
        pass
    assert [stream.result.text for stream in streams] == expected


def test_a_stream_that_is_left_gives_its_place_back(model: bitnet_core.Model) -> None:
    stream = model.generate(PROMPT, stream=True)
    next(stream)
    with pytest.raises(BitnetError, match="not finished"):
        _ = stream.result
    stream.close()
    assert stream.result.finish_reason == "cancelled"
    assert list(stream) == []
    abandoned = model.generate(PROMPT, stream=True)
    next(abandoned)
    del abandoned
    model.engine.step()
    assert not model.engine.scheduler.running


def test_a_repeated_prompt_is_not_computed_again(model: bitnet_core.Model) -> None:
    prompt = (PROMPT + " there was a fox. ") * 12
    first, again = (model.generate(prompt, max_tokens=4) for _ in range(2))
    assert again.tokens == first.tokens
    assert again.cached_tokens >= 64


def test_chat_uses_the_template(model: bitnet_core.Model) -> None:
    messages = [{"role": "user", "content": "Tell me a story."}]
    result = model.chat(messages, max_tokens=4)
    assert result.prompt_tokens == len(model.chat_template.chat_tokens(messages))
    assert len(list(model.chat(messages, max_tokens=4, stream=True))) >= 4


def test_chat_does_not_read_the_file_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with bitnet_core.load(None, "numpy") as loaded:
        monkeypatch.setattr(
            type(loaded.source), "tokenizer", property(lambda _: pytest.fail("the header is read again"))
        )
        assert loaded.chat_template.origin == "file"


def test_perplexity_is_that_of_the_logits(model: bitnet_core.Model) -> None:
    tokens = list(model.generate(PROMPT, max_tokens=30).tokens)
    logits = model.logits(tokens).astype(np.float64)
    chances = np.exp(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    expected = np.exp(-np.log(chances[np.arange(29), tokens[1:]]).mean())
    assert model.perplexity(tokens) == pytest.approx(expected, rel=1e-6)


def test_perplexity_of_a_text_longer_than_the_context(model: bitnet_core.Model) -> None:
    tokens = list(model.generate(PROMPT, max_tokens=60).tokens) * 18
    assert len(tokens) > model.config.context
    calls: list[tuple[str, int, int]] = []
    whole = model.perplexity(tokens, stride=model.config.context, progress=lambda *call: calls.append(call))
    assert 0.5 < model.perplexity(tokens) / whole < 2
    done = [scored for _, scored, _ in calls]
    assert {(what, total) for what, _, total in calls} == {("scoring", len(tokens))}
    assert done == sorted(set(done))
    assert (len(done), done[-1]) == (ceil_div(len(tokens), 64), len(tokens))


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "empty"),
        ([], {}, "empty"),
        ("a " * 2000, {}, "context"),
        (PROMPT, {"max_tokens": 0}, "max_tokens"),
        (PROMPT, {"top_p": -0.1}, "top_p"),
        (PROMPT, {"stop": [""]}, "stop"),
        ([10**9], {}, "outside"),
    ],
)
def test_requests_that_cannot_be(model: bitnet_core.Model, prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model.generate(prompt, **options)


def test_a_doubt_about_the_layout_is_settled_by_the_text(
    model: bitnet_core.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[float] = []
    monkeypatch.setattr("bitnet_core.api.loading.decide_layout", lambda source, nll: measured.append(nll("A")))
    with bitnet_core.load(None, "numpy"):
        pass
    assert measured == [pytest.approx(np.log(model.perplexity(SELF_TEST_TEXT)), rel=1e-4)]


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        bitnet_core.load(tmp_path / "missing.gguf")
    with pytest.raises(DeviceNotFoundError):
        bitnet_core.load(None, "nosuch")
    with pytest.raises(UsageError, match="kv_cache_type"):
        bitnet_core.load(None, "numpy", kv_cache_type="f64")
    with pytest.raises(UsageError, match="activation_group_size must be one of 32, 128, not 64"):
        bitnet_core.load(None, "numpy", activation_group_size=64)
    with pytest.raises(UsageError, match="trained with one scale a row"):
        bitnet_core.load(None, "numpy", activation_group_size=128)


def test_what_is_wrong_with_the_file_is_told_before_a_missing_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are looked at at once; a device that was opened for nothing is closed."""
    closed: list[str] = []
    monkeypatch.setattr(NumpyDevice, "close", lambda self: closed.append(self.info.request))

    def damaged(_keys: object, **_options: object) -> NoReturn:
        raise TokenizerError("damaged")

    monkeypatch.setattr(loading, "load_tokenizer", damaged)
    for device in ("numpy", "cuda"):
        with pytest.raises(TokenizerError, match="damaged"):
            bitnet_core.load(device=device)
    assert closed == ["numpy:0"]


def test_a_device_that_was_opened_for_no_file_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed: list[str] = []
    monkeypatch.setattr(NumpyDevice, "close", lambda self: closed.append(self.info.request))
    for device in ("numpy", "cuda"):
        with pytest.raises(ModelError, match="no such file"):
            bitnet_core.load(tmp_path / "none.gguf", device)
    assert closed == ["numpy:0"]


def test_a_model_closes_once(model: bitnet_core.Model) -> None:
    other = bitnet_core.load("stories", "numpy", context=64, kv_cache_type="int8")
    assert len(other.generate(PROMPT, max_tokens=500).tokens) < 64
    device = other.device
    other.close()
    other.close()
    assert isinstance(device, NumpyDevice)
    assert not device._buffers


class DyingDevice(NumpyDevice):
    """Is lost at the tenth replay."""

    replays = 0

    def replay(self, recording: Any) -> None:
        self.replays += 1
        if self.replays > 9:
            raise DeviceLostError("gone", backend="numpy", operation="replay")
        super().replay(recording)


@pytest.mark.parametrize("request_name", ["auto", "numpy"])
def test_only_an_automatic_choice_survives_the_loss(
    model: bitnet_core.Model, monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    expected = model.generate(PROMPT, max_tokens=24).text
    dying, fresh = DyingDevice(), NumpyDevice()
    request = selection.resolve_request(request_name)
    summary = selection.BackendStartupSummary(request, ("numpy",), dying.info)
    monkeypatch.setattr("bitnet_hal.discovery.opening.open_device", lambda *_: (dying, summary))
    monkeypatch.setattr(selection, "next_devices", lambda summary, error: [summary.selected])
    monkeypatch.setattr(selection, "open_listed", lambda info: fresh)
    with bitnet_core.load(None, request_name) as loaded:
        if request_name == "auto":
            assert loaded.generate(PROMPT, max_tokens=24).text == expected
            assert loaded.device is fresh
            assert loaded.summary.compute_path == "fallback"
        else:
            with pytest.raises(DeviceLostError, match="gone"):
                loaded.generate(PROMPT, max_tokens=24)


class SmallDevice(NumpyDevice):
    """Has no room for anything."""

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Any:
        raise OutOfMemoryError("full", requested=nbytes, free=0, backend="numpy")


@pytest.mark.parametrize("request_name", ["auto", "numpy"])
def test_only_an_automatic_choice_goes_on_where_a_model_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    small, fresh = SmallDevice(), NumpyDevice()
    summary = selection.BackendStartupSummary(selection.resolve_request(request_name), ("numpy",), small.info)
    monkeypatch.setattr("bitnet_hal.discovery.opening.open_device", lambda *_: (small, summary))
    monkeypatch.setattr(selection, "next_devices", lambda summary, error: [summary.selected])
    monkeypatch.setattr(selection, "open_listed", lambda info: fresh)
    if request_name == "auto":
        with bitnet_core.load(None, request_name) as loaded:
            assert loaded.device is fresh
            assert "full" in loaded.summary.skipped[0][1]
    else:
        with pytest.raises(OutOfMemoryError, match="full"):
            bitnet_core.load(None, request_name)
    assert not small._buffers


def test_single_operations() -> None:
    rng = np.random.default_rng(0)
    signs, a = rng.integers(-1, 2, (37, 200)), rng.integers(-128, 128, (5, 200), np.int8)
    with bitnet_core.provider("numpy") as provider:
        w, scale = provider.quantize((signs * np.float32(0.37)).astype(np.float32), "i2_s")
        assert w.shape == (37, 64)
        np.testing.assert_array_equal(provider.matmul_i2s(a, w), a.astype(np.int32) @ signs.T)
        scales = rng.random(37, np.float32)
        np.testing.assert_array_equal(
            provider.matmul_i2s(a, w, scales), (a.astype(np.int32) @ signs.T).astype(np.float32) * scales
        )
        assert scale == np.float32(0.37)
        _, absmean = provider.quantize(np.array([[0.3, -1.0, 2.0, 0.1]], np.float32))
        assert absmean == pytest.approx(0.85)
        for wrong in (a.astype(np.int32), a[0], a[:, :100]):
            with pytest.raises(UsageError):
                provider.matmul_i2s(wrong, w)
        with pytest.raises(UsageError):
            provider.matmul_i2s(a, w, scales[:3])
        with pytest.raises(UsageError):
            provider.quantize(np.array([[np.nan]], np.float32))
        for kind, why in (("tl1", "tiles"), ("TL2", "tiles"), ("qk256", "bitnet-rs"), ("x", "unknown")):
            with pytest.raises(UsageError, match=why):
                provider.quantize(np.ones((1, 4), np.float32), kind)  # type: ignore[arg-type]


def test_a_model_says_what_to_do_instead_of_pickling_it() -> None:
    with bitnet_core.load(device="numpy") as model:
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(UsageError, match=r"call load\(\) in each process, and let threads share one Model"):
                attempt(model)

        with pytest.raises(UsageError, match=r"a Tokenizer cannot be pickled .* call load\(\)"):
            pickle.dumps(model.tokenizer)


def test_every_error_can_be_imported_from_one_module() -> None:
    import bitnet_core.errors
    import bitnet_hal.errors

    kinds = [one for one in vars(bitnet_hal.errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert len(kinds) > 10
    assert {kind.__name__ for kind in kinds} < set(bitnet_core.errors.__all__)
    assert all(getattr(bitnet_core.errors, kind.__name__) is kind for kind in kinds)


@pytest.mark.parametrize("used", [False, True])
def test_agenerate_after_close_is_a_usage_error(used: bool) -> None:
    async def run(model: Any) -> None:
        if used:
            await model.agenerate("Once", max_tokens=1)
        waiting = model.agenerate("Once", max_tokens=1)
        model.close()
        with pytest.raises(UsageError, match="closed"):
            await waiting
        with pytest.raises(UsageError, match="closed"):
            await model.agenerate("Once")

    with bitnet_core.load(device="numpy") as model:
        asyncio.run(run(model))


def test_paths_that_are_none_are_named() -> None:
    with pytest.raises(UsageError, match="model must be a path"):
        bitnet_core.load("a\0b")
    with bitnet_core.load(device="numpy") as model:
        for call in (model.load_state, model.save_state):
            with pytest.raises(UsageError, match="path must be a path"):
                call("a\0b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_state_is_not_read_from_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with bitnet_core.load(device="numpy") as model, pytest.raises(ModelError, match="it is not a file"):
        model.load_state(tmp_path / "pipe")
