"""bitnet models for the llm command line tool."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import llm
from bitnet_core.options.fields import options_of
from bitnet_core.options.sampling import SamplingParams
from pydantic import Field, create_model

if TYPE_CHECKING:
    from bitnet_core import Model

MODEL_VARIABLE = "LLM_BITNET_MODEL"

_NUMBERS = {name: one for name, one in options_of(SamplingParams).items() if one.plain in (int, float) and one.flags}
"""Sampling options of a prompt."""


class _Own(llm.Options):
    """Options of a prompt that are not sampling options."""

    max_tokens: int = Field(512, ge=1, description="Maximum tokens of an answer")
    stop: str = Field("", description="Stop before this text")
    model: str | None = Field(None, description=f"Model file; default: {MODEL_VARIABLE}, then the one that ships")
    device: str = Field("auto", description="Device to run it on, such as cpu, gpu or cuda:0")


def _prompt_options() -> type[llm.Options]:
    """Return the options of a prompt; a sampling option that is not given is the model's own."""
    fields: dict[str, Any] = {
        name: (
            one.plain | None,
            Field(None, ge=one.option.at_least, le=one.option.at_most, description=one.option.help),
        )
        for name, one in _NUMBERS.items()
    }
    return create_model("Options", __base__=_Own, **fields)


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Offer the model; it is loaded when it is used."""
    register(Bitnet())


class Bitnet(llm.Model):
    """A model on this machine."""

    model_id = "bitnet"
    can_stream = True
    supports_schema = True

    Options = _prompt_options()  # type: ignore[assignment]  # llm annotates it with a class of its own

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: llm.Conversation | None
    ) -> Iterator[str]:
        """Yield the chunks of the answer."""
        options: Any = prompt.options
        chosen: Any = {name: getattr(options, name) for name in _NUMBERS}
        chosen["stop"] = [options.stop] if options.stop else []
        if prompt.schema:
            chosen["response_format"] = {"type": "json_schema", "json_schema": {"schema": prompt.schema}}
        model = loaded(options.model or os.environ.get(MODEL_VARIABLE), options.device)
        chunks = model.chat(conversation_messages(prompt), stream=True, max_tokens=options.max_tokens, **chosen)
        for chunk in chunks:
            yield chunk.text
        result = chunks.result
        response.set_usage(input=result.prompt_tokens, output=len(result.tokens))


@cache
def loaded(model: str | None, device: str) -> Model:
    """Return a model, loaded once in this process."""
    import bitnet_core

    return bitnet_core.load(model, device)


def conversation_messages(prompt: llm.Prompt) -> list[dict[str, Any]]:
    """Return the messages of the conversation so far and of the new prompt."""
    return [
        {"role": message.role, "content": "".join(getattr(part, "text", "") for part in message.parts)}
        for message in prompt.messages
    ]
