"""A model on a device: generation, chat, logits, perplexity."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, Unpack, cast, overload

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device
from bitnet_hal.discovery.selection import BackendStartupSummary, open_device, open_next
from bitnet_hal.errors import GpuError, UsageError
from bitnet_hal.rounding import ceil_div

from bitnet_core.api.arguments import (
    TEXT_OR_TOKENS,
    TEXTS,
    check,
    check_messages,
    check_options,
    check_prompt,
    is_batch,
)
from bitnet_core.api.asynchronous import AsyncGeneration
from bitnet_core.api.embedding import embed
from bitnet_core.api.figures import stats_of
from bitnet_core.api.options import ChatOptions, EmbedSettings, GenerateOptions, Prompt, SamplingOptions
from bitnet_core.engine.cache_file import load_state, save_state
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.output import Generation, GenerationStream, OutputProcessor, StopFilter
from bitnet_core.engine.perplexity import perplexity
from bitnet_core.engine.replicas.arrivals import OtherDevices
from bitnet_core.engine.replicas.remote_engine import RemoteEngine
from bitnet_core.engine.request.reasoning import Reasoning, ReasoningLimit
from bitnet_core.engine.sampling.constraint import Constraint, Mask
from bitnet_core.engine.sampling.defaults import sampling_defaults
from bitnet_core.engine.speculation.drafter import Drafter
from bitnet_core.engine.worker import closed
from bitnet_core.measure.profiling import StepProfile, profile
from bitnet_core.model.source import ModelSource
from bitnet_core.options.embedding import EmbedOptions
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.kinds import checked
from bitnet_core.progress import Progress
from bitnet_core.structured import Grammars, grammar_of
from bitnet_core.tokenizer import StreamDecoder, Tokenizer
from bitnet_core.tokenizer.chat import ChatTemplate

log = logging.getLogger(__name__)


class Model:
    """A model on a device, and a context manager that closes it; afterwards every use of the device raises UsageError.
    Threads may share it: their requests are generated together."""

    def __init__(
        self,
        source: ModelSource,
        tokenizer: Tokenizer | Future[Tokenizer],
        device: Device | RemoteEngine,
        summary: BackendStartupSummary,
        options: EngineOptions,
        progress: Progress | None = None,
        draft_model: Callable[[], Drafter] | None = None,
        before: Sequence[tuple[Device, int]] = (),
    ) -> None:
        """device: a device, or the engine of another process, which serves requests and can do nothing else. before:
        further devices, with the number of layers that each computes before those of `device`."""
        self.source = source
        self._summary = summary
        self.config = options.config_of(source.config)
        self.defaults = sampling_defaults(source)
        self._template: ChatTemplate | None = None
        self._grammars: Grammars | None = None
        self._remote = device if isinstance(device, RemoteEngine) else None
        if isinstance(device, RemoteEngine):
            self._engine = cast(Engine, device)
        else:
            self._engine = Engine(
                source,
                device,
                options,
                before=before,
                reopen=None if before else self._reopen,
                helper=partial(_open_cpu, device),
                progress=progress,
                draft_model=draft_model,
            )
        self.tokenizer = tokenizer.result() if isinstance(tokenizer, Future) else tokenizer
        self.others: OtherDevices | None = None  # devices that serve this model too, for a ReplicaSet
        self._closed = False
        self._threads: ThreadPoolExecutor | None = None

    @property
    def engine(self) -> Engine:
        """The engine. Raises UsageError after `close`."""
        if self._closed:
            raise closed()
        return self._engine

    @property
    def summary(self) -> BackendStartupSummary:
        """The device that was chosen, and those that failed before it; it changes if a device is lost."""
        return self._summary if self._remote is None else self._remote.summary

    @property
    def name(self) -> str:
        """The model's name, else that of its file."""
        return self.config.name or self.source.path.name

    @property
    def device(self) -> Device:
        """The device in use, which changes if one is lost."""
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

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], *, stream: Literal[False] = False, **options: Unpack[GenerateOptions]
    ) -> list[Generation]: ...

    def generate(
        self, prompt: Prompt | list[str] | list[list[int]], *, stream: bool = False, **options: Unpack[GenerateOptions]
    ) -> Generation | GenerationStream | list[Generation]:
        """Continue a prompt: text, or token ids.

        Sampling options are those of SamplingParams; options not given come from `defaults`. The output ends before the
        first of the `stop` strings, at one of `stop_token_ids`, at the model's end tokens, or after max_tokens (128).
        response_format: as OpenAI's, such as {"type": "json_schema", "json_schema": {"schema": ...}}; the output then
        conforms to it, unless max_tokens cuts it off (see structured.grammar_of; needs llguidance).

        Returns a Generation, or with stream=True an iterator of TextChunks whose `.result` is the Generation; for a
        list of prompts, which are generated together, a list of Generations. Raises UsageError for an empty prompt, one
        longer than the context, and options of a wrong type or out of range.
        """
        stream = check("stream", stream, bool)
        options = cast(GenerateOptions, check_options(options, GenerateOptions))
        if is_batch(prompt):
            if stream:
                raise UsageError("stream=True takes one prompt: call generate(..., stream=True) once per prompt")
            return self._batch(cast(Sequence[Prompt], prompt), options)
        check_prompt(prompt)
        return self._begun(cast(Prompt, prompt), stream, options)

    def _begun(self, prompt: Prompt, stream: bool, options: GenerateOptions) -> Generation | GenerationStream:
        if isinstance(prompt, str):
            if not prompt:
                raise UsageError("the prompt is empty")
            self.tokenizer.check_fits(prompt, self.engine.max_model_len)
            prompt = self.tokenizer.encode(prompt, add_bos=self.tokenizer.add_bos)
        return self._generate(prompt, stream, **options)

    def _batch(self, prompts: Sequence[Prompt], options: GenerateOptions) -> list[Generation]:
        for prompt in prompts:
            check_prompt(prompt)
        streams: list[GenerationStream] = []
        try:
            for prompt in prompts:
                streams.append(cast(GenerationStream, self._begun(prompt, True, options)))
            return [stream.read() for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def agenerate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """Return an asynchronous `generate`: await it for the Generation, or read its TextChunks with `async for`.
        Concurrent requests are generated together. Errors are those of `generate`, raised by the first await."""
        return AsyncGeneration(lambda: self.generate(prompt, stream=True, **options), self._executor)

    def achat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> AsyncGeneration:
        """Return an asynchronous `chat`, used as `agenerate`."""
        return AsyncGeneration(lambda: self.chat(messages, stream=True, **options), self._executor)

    @property
    def _executor(self) -> ThreadPoolExecutor:
        """A pool with one thread per concurrent request."""
        sequences = self.engine.sequences
        if self._threads is None:
            self._threads = ThreadPoolExecutor(sequences, thread_name_prefix="bitnet")
        return self._threads

    def warmup(self) -> float:
        """Compile kernels and record steps, so that the first request does not wait; returns the seconds it took."""
        began = time.perf_counter()
        self.tokenizer.prepare()
        if self.config.pooling:
            self.engine.embed([[0, 1]])
            return time.perf_counter() - began
        prompt = [token % self.config.tokens for token in range(1, min(33, self.engine.max_model_len // 2 + 1))]
        for temperature in (0.0, 1.0):
            params = self.defaults.params(temperature=temperature, seed=0)
            request = self.engine.add_request(prompt, params, max_tokens=4)
            while request.finish_reason is None:
                self.engine.step()
        return time.perf_counter() - began

    def save_state(self, path: str | PathLike[str], *, force: bool = False) -> int:
        """Write the prefix cache of this model to a file; returns the number of blocks of 64 tokens. Raises UsageError
        if the file exists, unless `force` is set, or cannot be written."""
        return save_state(self.engine, check("path", path, Path), force=force)

    def load_state(self, path: str | PathLike[str]) -> int:
        """Load a file of `save_state`, of this or another device, into free blocks of the cache; returns the number of
        blocks. Prompts with these prefixes are not computed again. Raises ModelError if the file is damaged or belongs
        to another model or kv_dtype."""
        return load_state(self.engine, check("path", path, Path))

    def profile(self) -> list[StepProfile]:
        """Return the time of every kernel of the steps recorded so far, by the device's clock. Raises UsageError if the
        device cannot time kernels."""
        return profile(self.engine)

    def _generate(
        self,
        prompt: Sequence[int],
        stream: bool,
        reasoning: tuple[int, int] | None = None,
        reasoning_budget: int | None = None,
        *,
        max_tokens: int = 128,
        stop: str | Iterable[str] = (),
        stop_token_ids: Iterable[int] = (),
        response_format: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Generation | GenerationStream:
        """Add a request of token ids. reasoning: ids of the tags, if reasoning is to be split off."""
        stops = StopFilter([stop] if isinstance(stop, str) else stop)
        ends = self.tokenizer.eos_ids | frozenset(stop_token_ids)
        grammar = grammar_of(response_format)
        constraint: Constraint | None = self.grammars.constraint(grammar) if grammar else None
        if reasoning:
            constraint = self.after_reasoning(prompt, constraint, reasoning_budget)
        params = self.defaults.params(**sampling)
        request = self.engine.add_request(
            prompt, params, max_tokens=max_tokens, stop_token_ids=ends, constraint=constraint
        )
        tracker = Reasoning(*reasoning, prompt) if reasoning else None
        output = OutputProcessor(request, StreamDecoder(self.tokenizer), stops, tracker)
        chunks = GenerationStream(self.engine, output, progress)
        return chunks if stream else chunks.read()

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
        **options: Unpack[ChatOptions],
    ) -> Generation | GenerationStream:
        """Reply to {"role": ..., "content": ...} messages with the model's chat template; options as in `generate`.

        enable_thinking: True lets the model reason before it answers (None: the template's default). reasoning_budget:
        largest number of reasoning tokens; with it, or with a response_format, every token is chosen on the host.
        tools: descriptions for the template. Reasoning is in `.reasoning` of chunks and result, not in `.text`. Raises
        UsageError if there are no messages, or if the template or the vocabulary does not support an option.
        """
        stream = check("stream", stream, bool)
        given = check_options(options, ChatOptions)
        tools, enable_thinking = (given.pop(name, None) for name in ("tools", "enable_thinking"))
        reasoning_budget = given.pop("reasoning_budget", None)
        check_messages(messages)
        if not messages:
            raise UsageError("there are no messages")
        if reasoning_budget is not None and (reasoning_budget < 0 or self.thinking_tags is None):
            raise UsageError(
                "reasoning_budget must be 0 or more, for a model whose vocabulary has <think> and </think>"
            )
        template = self.chat_template
        variables = {"enable_thinking": enable_thinking, "tools": tools}
        used: dict[str, Any] = {name: value for name, value in variables.items() if value is not None}
        for name in used:
            if name not in (template.tool_source if tools else template.source):
                raise UsageError(f"the model's chat template does not support {name}")
        ids = template.chat_tokens(messages, limit=self.engine.max_model_len, **used)
        return self._generate(ids, stream, self.thinking_tags, reasoning_budget, **given)

    def after_reasoning(
        self, prompt: Sequence[int], constraint: Constraint | None, reasoning_budget: int | None = None
    ) -> Constraint | None:
        """Wrap a constraint so that it applies after the reasoning of a reply, which has at most reasoning_budget
        tokens. Returns the constraint itself for a model without reasoning tags, None if there is nothing to
        constrain."""
        tags = self.thinking_tags
        if tags is None or (constraint is None and reasoning_budget is None):
            return constraint
        limit = self.engine.max_model_len if reasoning_budget is None else reasoning_budget
        ending = self.tokenizer.encode("\n</think>\n\n", add_bos=False, parse_special=True)
        blank = self._blank_tokens
        return ReasoningLimit(Reasoning(*tags, prompt), limit, ending, self.config.vocab, constraint, blank)

    @cached_property
    def _blank_tokens(self) -> Mask:
        """Bit mask of the tokens of white space."""
        bits = np.zeros(ceil_div(self.config.vocab, 32) * 32, np.uint8)
        for token in range(self.config.vocab):
            bits[token] = self.tokenizer.token_bytes(token).isspace()
        return np.packbits(bits, bitorder="little").view(np.int32)

    @property
    def thinking_tags(self) -> tuple[int, int] | None:
        """Token ids of <think> and </think>; None if the vocabulary lacks them."""
        opening, closing = (self.tokenizer.tag(text) for text in ("<think>", "</think>"))
        return None if opening is None or closing is None else (opening, closing)

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template, or the default one."""
        if self._template is None:
            self._template = ChatTemplate(self.tokenizer)
        return self._template

    @property
    def grammars(self) -> Grammars:
        """The grammar compiler of this model. Raises UsageError if llguidance is not installed."""
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer, self.config.vocab)
        return self._grammars

    def embed(
        self, texts: Sequence[str] | Sequence[Sequence[int]], **options: Unpack[EmbedSettings]
    ) -> npt.NDArray[np.float32] | npt.NDArray[np.int8]:
        """Return the vectors of texts, [texts, dimensions], pooled and normalized as the model's files say.

        Texts may be token ids, with those that begin and end a text. dimensions: keep the first so many numbers. dtype:
        "float32", or "int8": each vector is scaled so that its largest magnitude is 127. truncate: cut long texts.
        Raises UsageError for a model that generates text, an empty text, and one longer than the context.
        """
        given = EmbedOptions(**check_options(options, EmbedSettings))
        return embed(self.engine, self.tokenizer, checked("texts", texts, TEXTS), given)

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return f32[T, V], the logits after every token."""
        # check at most one token more than are allowed: longer input is rejected anyway
        looked_at = tokens[: self.engine.max_model_len + 1] if isinstance(tokens, Sequence) else tokens
        check("tokens", looked_at, Sequence[int])
        return self.engine.logits(tokens)

    def perplexity(
        self,
        text: str | Sequence[int],
        *,
        stride: int | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> float:
        """Return the perplexity of a text: exp of the mean negative log likelihood of every token but the first, in
        windows of the context that start `stride` tokens apart (default: half the context).

        progress: called with ("scoring", tokens done, tokens in total).
        """
        stride = check("stride", stride, int | None)
        check("progress", progress, Progress | None)
        checked("text", text, TEXT_OR_TOKENS)
        ids = self.tokenizer.encode(text, add_bos=self.tokenizer.add_bos) if isinstance(text, str) else list(text)
        return perplexity(self.engine, ids, stride, progress)

    def stats(self) -> dict[str, Any]:
        """Return statistics: kernel launches (also by device), layers by device, memory of device and host, cache use,
        averages, fallbacks, the share of launches on GPUs, error counts by class and the last 100 errors."""
        return stats_of(self.engine, self.summary)

    def close(self) -> None:
        """Free the device and the file; may be called twice."""
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._engine.close()
        self.source.close()
        if self._template is not None:
            self._template.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a Model cannot be pickled or copied, because it owns a device and an open file: "
            "call load() in each process, and let threads share one Model"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reopen(self, error: GpuError) -> Device | None:
        moved = open_next(self._summary, error)
        if moved is None:
            return None
        device, self._summary = moved
        return device


def _open_cpu(beside: Device) -> Device:
    """Open a CPU for the layers that a GPU has no memory for."""
    device, _ = open_device("cpu", fallback=False)
    log.info("%s computes layers for %s", device.info.request, beside.info.request)
    return device
