"""A model on a device that generates text and replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, Unpack, cast, overload

import numpy as np
from bitnet_hal.errors import UsageError
from bitnet_hal.rounding import ceil_div

from bitnet_core.api.arguments import (
    check,
    check_messages,
    check_options,
    check_prompt,
    is_batch,
)
from bitnet_core.api.asynchronous import AsyncGeneration
from bitnet_core.api.open_model import OpenModel
from bitnet_core.api.options import ChatOptions, GenerateOptions, Prompt, SamplingOptions
from bitnet_core.engine.output import Generation, GenerationStream, OutputProcessor, StopFilter
from bitnet_core.engine.request.reasoning import Reasoning, ReasoningLimit
from bitnet_core.engine.sampling.constraint import Constraint, Mask
from bitnet_core.progress import Progress
from bitnet_core.structured import Grammars, grammar_of
from bitnet_core.tokenizer import StreamDecoder
from bitnet_core.tokenizer.chat import ChatTemplate


class Model(OpenModel):
    """A model on a device, and a context manager that closes it; afterwards every use of the device raises UsageError.
    Threads may share it: their requests are generated together."""

    _template: ChatTemplate | None = None
    _grammars: Grammars | None = None
    _threads: ThreadPoolExecutor | None = None

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
        """Add a request of token ids. reasoning: ids of the tags, if reasoning is to be separated."""
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

    def close(self) -> None:
        """Free the device and the file; may be called twice."""
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        super().close()
        if self._template is not None:
            self._template.close()

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
