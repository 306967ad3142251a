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

from bitnet_core.discovery.request import DeviceRequest
from bitnet_core.discovery.selection import BackendStartupSummary, open_device, open_next
from bitnet_core.engine.blocks import Eviction
from bitnet_core.engine.cache import KV_BUDGET
from bitnet_core.engine.constraint import Constraint
from bitnet_core.engine.defaults import sampling_defaults
from bitnet_core.engine.engine import Engine, closed
from bitnet_core.engine.options import EngineOptions
from bitnet_core.engine.reasoning import Reasoning, ReasoningLimit
from bitnet_core.engine.sampling import SamplingParams
from bitnet_core.engine.score import Scoring, perplexity, token_losses
from bitnet_core.engine.text import Generation, GenerationStream, Piece, StopFilter, TextMaker
from bitnet_core.environment import strict_mode
from bitnet_core.errors import DEVICE_FAILURES, GpuError, OutOfMemoryError, UsageError
from bitnet_core.formats.gguf.source import GGUFSource
from bitnet_core.formats.i2_s_layout.self_test import SELF_TEST_TEXT, decide_layout
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary.i2_s import Layout
from bitnet_core.hal.device import Device
from bitnet_core.hub import local
from bitnet_core.model.source import ModelSource
from bitnet_core.plan.small_head import Choice
from bitnet_core.plan.upload import Progress
from bitnet_core.reference.float_model import FloatModel
from bitnet_core.structured import Grammars, grammar_of
from bitnet_core.tokenizer import StreamDecoder, Tokenizer, load_tokenizer
from bitnet_core.tokenizer.chat import ChatTemplate

__all__ = ["Generation", "GenerationStream", "Model", "Piece", "load"]

log = logging.getLogger(__name__)

Prompt = str | Sequence[int]
"""Text, or token ids as they are."""


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `Model.generate`; None for the model's own default."""

    max_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    presence_penalty: float
    frequency_penalty: float
    logprobs: int | None
    seed: int | None
    stop: str | Iterable[str]
    stop_ids: Iterable[int]
    response_format: Mapping[str, Any] | None
    progress: Progress | None


class ChatOptions(GenerateOptions, total=False):
    """Keyword arguments of `Model.chat`."""

    enable_thinking: bool | None
    max_thinking: int | None
    tools: Sequence[Mapping[str, Any]] | None


SHIPPED = "stories"
"""Name of the small model that comes with the package."""


def load(
    model: str | Path | ModelSource | None = None,
    device: str | DeviceRequest | None = "auto",
    *,
    kv_dtype: str = "f16",
    context: int | None = None,
    kv_budget: int = KV_BUDGET,
    max_sequences: int = 32,
    eviction: Eviction = "lru",
    burst_seconds: float = 0.1,
    small_head: Choice = "auto",
    layout: Layout | None = None,
    strict: bool | None = None,
    mmap: bool = True,
    fallback: bool = True,
    progress: Progress | None = None,
) -> Model:
    """Open a model on a device.

    model: a file, a folder, a model of the hub (hf:OWNER/REPO[:FILE]), an opened source, or None or "stories" for the
    small model that ships with the package. device: a request such as "auto", "gpu" or "cuda:0". kv_dtype: "f16", "f32"
    or "int8". context: tokens of the longest sequence (None: the model's, up to 131,072). kv_budget: bytes of the
    key/value cache. max_sequences: texts generated at a time. eviction: which reusable prefix goes first, "lru", "fifo"
    or "lfu". burst_seconds: about how long greedy tokens are made before a stream shows them. small_head: whether an
    f16 head gets an int8 copy for choosing tokens exactly with half the reading, "auto" (on CPUs), "on" or "off".
    layout: byte layout of I2_S tensors, where the file's own evidence is not to be asked. strict: warnings about the
    file are errors (None: as BITNET_STRICT_MODE says). mmap: where false, the file is read as a whole, so that it may
    be changed or cut off while it is used; a mapped one must not be. fallback: whether "auto" goes on with the next
    device where one fails, at load or in the middle of a text; a device that was named never does. progress is called
    with (what, done, total).

    Raises ModelError, TokenizerError, StrictModeError, UsageError and the GpuError of a device that was asked for.
    """
    options = EngineOptions(
        kv_dtype=kv_dtype,
        context=context,
        kv_budget=kv_budget,
        max_sequences=max_sequences,
        eviction=eviction,
        burst_seconds=burst_seconds,
        small_head=small_head,
    )
    source = _opened(model, layout, strict_mode() if strict is None else strict, mmap)
    try:
        tokenizer = load_tokenizer(source.tokenizer)
        placed = open_device(device, fallback)
        while True:
            try:
                return _placed(source, tokenizer, *placed, options, progress)
            except (OutOfMemoryError, *DEVICE_FAILURES) as exc:
                following = open_next(placed[1], exc)
                if following is None:
                    raise
                log.warning("%s, going on with %s", exc, following[1].selected.request)
                placed = following
    except BaseException:
        source.close()
        raise


def _opened(model: str | Path | ModelSource | None, layout: Layout | None, strict: bool, mapped: bool) -> ModelSource:
    if model is not None and not isinstance(model, str | Path):
        return model
    if isinstance(model, str):
        model = local(model, log.info)
    if model is None or (model == SHIPPED and not Path(model).exists()):
        return open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")), strict=strict)
    return open_model(model, layout=layout, strict=strict, mapped=mapped)


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
    """A model on a device; a context manager that closes it, after which every use that needs the device raises
    UsageError. Threads may share it: their texts are made together."""

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
        self.defaults = sampling_defaults(source)
        self._template: ChatTemplate | None = None
        self._grammars: Grammars | None = None
        self._engine = Engine(source, device, options, reopen=self._reopen, progress=progress)
        self._closed = False

    @property
    def engine(self) -> Engine:
        """What computes; UsageError after `close`."""
        if self._closed:
            raise closed()
        return self._engine

    @property
    def name(self) -> str:
        """The model's own name, else its file's."""
        return self.config.name or self.source.path.name

    @property
    def device(self) -> Device:
        """The device in use; another one after the first was lost."""
        return self._engine.device

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
        self, prompt: Prompt, *, stream: bool = False, **options: Unpack[GenerateOptions]
    ) -> Generation | GenerationStream:
        """Continue a prompt (text, or token ids as they are). Sampling as in SamplingParams, by `defaults` where it
        is not given; the text ends before the first of the `stop` strings, at one of `stop_ids`, at the model's own end
        tokens, or after max_tokens (128). response_format: as OpenAI's, {"type": "json_schema", "json_schema":
        {"schema": ...}} for one; the text is then what it asks for, as far as max_tokens allows (see
        structured.grammar_of; needs llguidance).

        Returns a Generation, or with stream=True an iterator of Pieces whose `.result` is the Generation. UsageError
        for an empty prompt, one longer than the context, and parameters out of range.
        """
        if isinstance(prompt, str):
            if not prompt:
                raise UsageError("the prompt is empty")
            self.tokenizer.check_fits(prompt, self.engine.limit)
            prompt = self.tokenizer.encode(prompt, add_bos=self.tokenizer.add_bos)
        return self._text(prompt, stream, **options)

    def _text(
        self,
        prompt: Sequence[int],
        stream: bool,
        reasoning: tuple[int, int] | None = None,
        max_thinking: int | None = None,
        *,
        max_tokens: int = 128,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logprobs: int | None = None,
        seed: int | None = None,
        stop: str | Iterable[str] = (),
        stop_ids: Iterable[int] = (),
        response_format: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Generation | GenerationStream:
        """reasoning: ids of the tags that set it off, where it is to be told apart."""
        defaults = self.defaults
        sampling = SamplingParams(
            defaults.temperature if temperature is None else temperature,
            defaults.top_k if top_k is None else top_k,
            defaults.top_p if top_p is None else top_p,
            defaults.min_p if min_p is None else min_p,
            defaults.repetition_penalty if repetition_penalty is None else repetition_penalty,
            dict(logit_bias or {}),
            seed,
            presence_penalty,
            frequency_penalty,
            logprobs,
        )
        stops = StopFilter([stop] if isinstance(stop, str) else stop)
        ends = self.tokenizer.eos_ids | frozenset(stop_ids)
        grammar = grammar_of(response_format)
        constraint: Constraint | None = self.grammars.constraint(grammar) if grammar else None
        if reasoning:
            constraint = self.after_reasoning(prompt, constraint, max_thinking)
        sequence = self.engine.add(prompt, sampling, max_tokens=max_tokens, stop_ids=ends, constraint=constraint)
        thoughts = Reasoning(*reasoning, prompt) if reasoning else None
        maker = TextMaker(sequence, StreamDecoder(self.tokenizer), stops, thoughts)
        pieces = GenerationStream(self.engine, maker, progress)
        if stream:
            return pieces
        for _ in pieces:
            pass
        return pieces.result

    @overload
    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> GenerationStream: ...

    @overload
    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> Generation: ...

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: bool = False,
        enable_thinking: bool | None = None,
        max_thinking: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation | GenerationStream:
        """The reply to {"role": ..., "content": ...} messages, by the model's chat template; options as `generate`.

        enable_thinking: whether the model reasons before it answers (None: as the template has it). max_thinking:
        tokens of reasoning after which it is made to answer; with it, or with a response_format, every token is chosen
        on the host. tools: descriptions for the template. The reasoning is in `.reasoning` of pieces and result, never
        in `.text`. UsageError for no messages, and for what the template or the vocabulary does not know.
        """
        if not messages:
            raise UsageError("there are no messages")
        if max_thinking is not None and (max_thinking < 0 or self.thinking_tags is None):
            raise UsageError("max_thinking must be 0 or more, for a model whose vocabulary has <think> and </think>")
        template = self.chat_template
        variables = {"enable_thinking": enable_thinking, "tools": tools}
        given: dict[str, Any] = {name: value for name, value in variables.items() if value is not None}
        for name in given:
            if name not in template.source:
                raise UsageError(f"the model's chat template knows no {name}")
        ids = template.chat_tokens(messages, limit=self.engine.limit, **given)
        return self._text(ids, stream, self.thinking_tags, max_thinking, **options)

    def after_reasoning(
        self, prompt: Sequence[int], constraint: Constraint | None, max_thinking: int | None = None
    ) -> Constraint | None:
        """A constraint that begins where the reasoning of a reply ends, after max_thinking tokens at most; itself for a
        model that does not reason, None where there is nothing to constrain."""
        tags = self.thinking_tags
        if tags is None or (constraint is None and max_thinking is None):
            return constraint
        limit = self.engine.limit if max_thinking is None else max_thinking
        ending = self.tokenizer.encode("\n</think>\n\n", add_bos=False, parse_special=True)
        return ReasoningLimit(Reasoning(*tags, prompt), limit, ending, self.config.vocab, constraint)

    @property
    def thinking_tags(self) -> tuple[int, int] | None:
        """Ids of <think> and </think>; None for a model that has none."""
        opening, closing = (self.tokenizer.tag(text) for text in ("<think>", "</think>"))
        return None if opening is None or closing is None else (opening, closing)

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's template, or what stands in for it."""
        if self._template is None:
            self._template = ChatTemplate(self.tokenizer)
        return self._template

    @property
    def grammars(self) -> Grammars:
        """Compiles grammars for this model; UsageError where llguidance is not installed."""
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer, self.config.vocab)
        return self._grammars

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """f32[T, V]: logits after every token."""
        return self.engine.logits(tokens)

    def perplexity(
        self,
        text: str | Sequence[int],
        *,
        stride: int | None = None,
        float_activations: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> float:
        """exp of the mean negative log likelihood of every token but the first, given at most a context of tokens
        before it; windows start `stride` tokens apart (default: half the context). progress("scoring", done, total)
        is called with numbers of tokens. float_activations: in float64 on the host, whatever the device, with
        activations that are not rounded to int8 (reference.float_model)."""
        ids = self.tokenizer.encode(text, add_bos=self.tokenizer.add_bos) if isinstance(text, str) else list(text)
        engine: Scoring = self.engine
        if float_activations:
            engine = FloatModel(self.source, self.engine.limit)
        return perplexity(engine, ids, stride, progress)

    def stats(self) -> dict[str, Any]:
        """Counters and sizes for people and receipts: kernel launches, device memory, cache use."""
        engine = self.engine
        return {
            "kernel_launches": dict(engine.kernel_launches),
            "memory": engine.memory(),
            **engine.figures(),
        }

    def close(self) -> None:
        """Free the device and the file; may be called twice."""
        self._closed = True
        self._engine.close()
        self.source.close()
        if self._template is not None:
            self._template.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reopen(self, error: GpuError) -> Device | None:
        moved = open_next(self.summary, error)
        if moved is None:
            return None
        device, self.summary = moved
        return device
