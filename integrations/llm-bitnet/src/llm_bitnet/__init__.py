"""bitnet models for the llm command line tool."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import llm
from pydantic import Field

if TYPE_CHECKING:
    from bitnet_core import Model

MODEL_VARIABLE = "LLM_BITNET_MODEL"

_CHOICES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop")
"""Options that are parameters of bitnet_core's generate by the same name."""


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Offer the model; nothing of bitnet is imported before it is used."""
    register(Bitnet())


class Bitnet(llm.Model):
    """A model on this machine."""

    model_id = "bitnet"
    can_stream = True
    supports_schema = True

    class Options(llm.Options):
        """Parameters of a prompt."""

        max_tokens: int = Field(512, ge=1, description="Tokens of an answer at most")
        temperature: float = Field(0.0, ge=0, description="0 takes the likeliest token")
        top_k: int = Field(0, ge=0, description="Sample from so many tokens; 0 for all")
        top_p: float = Field(1.0, ge=0, le=1, description="Sample from the likeliest tokens of this mass")
        min_p: float = Field(
            0.0, ge=0, le=1, description="Leave out what is less likely than this part of the likeliest"
        )
        repetition_penalty: float = Field(1.0, ge=0.01, le=100, description="Divide the logits of tokens seen by this")
        seed: int | None = Field(None, ge=0, description="Same seed, same text")
        stop: str = Field("", description="Stop before this text")
        model: str | None = Field(None, description=f"Model file; default: {MODEL_VARIABLE}, then the one that ships")
        device: str = Field("auto", description="Where to run it, such as cpu, gpu or cuda:0")

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: llm.Conversation | None
    ) -> Iterator[str]:
        """The answer's pieces."""
        options: Any = prompt.options
        chosen: Any = {name: getattr(options, name) for name in _CHOICES}
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
    """A model of this process."""
    import bitnet_core

    return bitnet_core.load(model, device)


def conversation_messages(prompt: llm.Prompt) -> list[dict[str, Any]]:
    """The conversation so far and the new prompt, as text."""
    return [
        {"role": message.role, "content": "".join(getattr(part, "text", "") for part in message.parts)}
        for message in prompt.messages
    ]
