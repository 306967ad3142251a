"""Load a model and generate: what Python programs use, and what the command line and the server stand on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.cache import KV_BUDGET
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.options import EngineOptions
from bitnet_core.engine.sampling import SamplingParams
from bitnet_core.engine.score import perplexity, token_losses
from bitnet_core.engine.text import Generation, GenerationStream, Piece, StopFilter
from bitnet_core.environment import strict_mode
from bitnet_core.errors import DeviceLostError, GpuError, OutOfMemoryError, UsageError
from bitnet_core.formats.gguf_source import GGUFSource
from bitnet_core.formats.open import open_model
from bitnet_core.formats.self_test import SELF_TEST_TEXT, decide_layout
from bitnet_core.formats.source import ModelSource
from bitnet_core.formats.ternary.i2_s import Layout
from bitnet_core.hal.device import Device
from bitnet_core.hal.request import DeviceRequest
from bitnet_core.hal.selection import BackendStartupSummary, open_device, open_next
from bitnet_core.model.upload import Progress
from bitnet_core.tokenizer import StreamDecoder, Tokenizer, load_tokenizer
from bitnet_core.tokenizer.chat import ChatTemplate

__all__ = ["Generation", "GenerationStream", "Model", "Piece", "load"]

log = logging.getLogger(__name__)

Prompt = str | Sequence[int]
"""Text, or token ids as they are."""


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `Model.generate` and `Model.chat`."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: str | Iterable[str]
    stop_ids: Iterable[int]
    progress: Progress | None


SHIPPED = "stories"
"""Name of the small model that comes with the package."""


def load(
    model: str | Path | ModelSource | None = None,
    device: str | DeviceRequest | None = "auto",
    *,
    kv_dtype: str = "f16",
    context: int | None = None,
    kv_budget: int = KV_BUDGET,
    layout: Layout | None = None,
    strict: bool | None = None,
    progress: Progress | None = None,
) -> Model:
    """Open a model on a device.

    model: a file, a folder, an opened source, or None or "stories" for the small model that ships with the package.
    device: a request such as "auto", "gpu" or "cuda:0". kv_dtype: "f16", "f32" or "int8". context: tokens of the
    longest sequence (None: the model's). kv_budget: bytes of the key/value cache. layout: byte layout of I2_S tensors,
    where the file's own evidence is not to be asked. strict: warnings about the file are errors (None: as
    BITNET_STRICT_MODE says). progress is called with (what, done, total).

    Raises ModelError, TokenizerError, StrictModeError, UsageError and the GpuError of a device that was asked for.
    """
    options = EngineOptions(kv_dtype=kv_dtype, context=context, kv_budget=kv_budget)
    source = _opened(model, layout, strict_mode() if strict is None else strict)
    try:
        tokenizer = load_tokenizer(source.tokenizer)
        placed = open_device(device)
        while True:
            try:
                return _placed(source, tokenizer, *placed, options, progress)
            except (OutOfMemoryError, DeviceLostError) as exc:
                following = open_next(placed[1], str(exc))
                if following is None:
                    raise
                log.warning("%s, going on with %s", exc, following[1].selected.request)
                placed = following
    except BaseException:
        source.close()
        raise


def _opened(model: str | Path | ModelSource | None, layout: Layout | None, strict: bool) -> ModelSource:
    if model is not None and not isinstance(model, str | Path):
        return model
    if model is None or (model == SHIPPED and not Path(model).exists()):
        return open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")), strict=strict)
    return open_model(model, layout=layout, strict=strict)


def _placed(
    source: ModelSource,
    tokenizer: Tokenizer,
    device: Device,
    summary: BackendStartupSummary,
    options: EngineOptions,
    progress: Progress | None,
) -> Model:
    """The model on a device, which is closed if it cannot be used."""
    try:
        decide_layout(source, lambda _: _self_test(source, tokenizer, device))
        return Model(source, tokenizer, device, summary, options, progress)
    except BaseException:
        with suppress(GpuError):  # what led here is the error that counts
            device.close()
        raise


def settle_layout(source: ModelSource) -> None:
    """Settles a doubt about the I2_S layout of an opened file by the self-test on the best device, as `load` does.

    Without a doubt no device is opened. Raises ModelError if the model predicts plain English under no layout.
    """
    if not isinstance(source, GGUFSource) or not source.has_i2_s or not source.layout.in_doubt:
        return
    tokenizer = load_tokenizer(source.tokenizer)
    opened, _ = open_device("auto")
    try:
        decide_layout(source, lambda _: _self_test(source, tokenizer, opened))
    finally:
        opened.close()


def _self_test(source: ModelSource, tokenizer: Tokenizer, device: Device) -> float:
    """Mean negative log likelihood of the self-test's sentence with the weights that the source gives now."""
    tokens = tokenizer.encode(SELF_TEST_TEXT, add_bos=tokenizer.add_bos)
    context = min(source.config.context, len(tokens) + 1)
    engine = Engine(source, device, EngineOptions(context=context, max_sequences=1))
    try:
        return float(token_losses(engine, tokens[:context]).mean())
    finally:
        engine.free()


class Model:
    """A model on a device. Used by one thread; a context manager that closes it."""

    def __init__(
        self,
        source: ModelSource,
        tokenizer: Tokenizer,
        device: Device,
        summary: BackendStartupSummary,
        options: EngineOptions,
        progress: Progress | None = None,
    ) -> None:
        self.source, self.tokenizer, self.summary = source, tokenizer, summary
        self.config = source.config
        self._template: ChatTemplate | None = None
        self.engine = Engine(source, device, options, reopen=self._reopen, progress=progress)

    @property
    def name(self) -> str:
        """The model's own name, else its file's."""
        return self.config.name or self.source.path.name

    @property
    def device(self) -> Device:
        """The device in use; another one after the first was lost."""
        return self.engine.device

    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> GenerationStream: ...

    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[False] = False, **options: Unpack[GenerateOptions]
    ) -> Generation: ...

    @overload
    def generate(
        self, prompt: Prompt, *, stream: bool, **options: Unpack[GenerateOptions]
    ) -> Generation | GenerationStream: ...

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 128,
        stream: bool = False,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        stop: str | Iterable[str] = (),
        stop_ids: Iterable[int] = (),
        progress: Progress | None = None,
    ) -> Generation | GenerationStream:
        """Continue a prompt (text, or token ids as they are). Sampling as in SamplingParams; the text ends before the
        first of the `stop` strings, at one of `stop_ids`, at the model's own end tokens, or after max_tokens.

        Returns a Generation, or with stream=True an iterator of Pieces whose `.result` is the Generation. UsageError
        for an empty prompt, one longer than the context, and parameters out of range.
        """
        sampling = SamplingParams(temperature, top_k, top_p, min_p, repetition_penalty, dict(logit_bias or {}), seed)
        stops = StopFilter([stop] if isinstance(stop, str) else stop)
        if isinstance(prompt, str):
            if not prompt:
                raise UsageError("the prompt is empty")
            prompt = self.tokenizer.encode(prompt, add_bos=self.tokenizer.add_bos)
        ends = self.tokenizer.eos_ids | frozenset(stop_ids)
        sequence = self.engine.add(prompt, sampling, max_tokens=max_tokens, stop_ids=ends)
        pieces = GenerationStream(self.engine, sequence, StreamDecoder(self.tokenizer), stops, progress)
        if stream:
            return pieces
        for _ in pieces:
            pass
        return pieces.result

    @overload
    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> GenerationStream: ...

    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerateOptions],
    ) -> Generation: ...

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, **options: Unpack[GenerateOptions]
    ) -> Generation | GenerationStream:
        """The reply to {"role": ..., "content": ...} messages, by the model's chat template; options as `generate`."""
        if not messages:
            raise UsageError("there are no messages")
        return self.generate(self.chat_template.chat_tokens(messages), stream=stream, **options)

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's template, or what stands in for it."""
        if self._template is None:
            self._template = ChatTemplate(self.tokenizer)
        return self._template

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """f32[T, V]: logits after every token."""
        return self.engine.logits(tokens)

    def perplexity(
        self,
        text: str | Sequence[int],
        *,
        stride: int | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> float:
        """exp of the mean negative log likelihood of every token but the first, given at most a context of tokens
        before it; windows start `stride` tokens apart (default: half the context). progress("scoring", done, total)
        is called with numbers of tokens."""
        ids = self.tokenizer.encode(text, add_bos=self.tokenizer.add_bos) if isinstance(text, str) else list(text)
        return perplexity(self.engine, ids, stride, progress)

    def stats(self) -> dict[str, Any]:
        """Counters and sizes for people and receipts: kernel launches, device memory, cache use."""
        engine = self.engine
        return {
            "kernel_launches": dict(engine.kernel_launches),
            "memory": engine.memory(),
            "preemptions": engine.scheduler.preemptions,
        }

    def close(self) -> None:
        """Free the device and the file; may be called twice."""
        self.engine.close()
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reopen(self, error: DeviceLostError) -> Device | None:
        moved = open_next(self.summary, str(error))
        if moved is None:
            return None
        device, self.summary = moved
        return device
