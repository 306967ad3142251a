"""What Python programs hand over is checked here, so that a wrong argument is named before anything is computed."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from bitnet_hal.errors import UsageError, short

from bitnet_core.plan.pool import MemoryPoolConfig


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _are(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    """An iterable that can be gone through twice, of such values; no text, whose parts are texts too."""
    return lambda value: (
        isinstance(value, Iterable)
        and not isinstance(value, str | bytes | Mapping)
        and iter(value) is not value
        and all(kind(one) for one in value)
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_whole(k) and _is_number(v) for k, v in value.items())


Kind = tuple[str, Callable[[Any], bool]]
NUMBER: Kind = ("a number", _is_number)
WHOLE: Kind = ("a whole number", _is_whole)
FLAG: Kind = ("True or False", lambda value: isinstance(value, bool))
TEXT: Kind = ("a text", _is_text)
TOKENS: Kind = ("a list of token ids", _are(_is_whole))
PATH: Kind = ("a path", lambda value: isinstance(value, str | PathLike))
CALL: Kind = ("a function", callable)

_OPTIONS: dict[str, Kind] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), NUMBER),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "stream_interval"), NUMBER),
    **dict.fromkeys(("max_tokens", "top_k", "logprobs", "seed", "reasoning_budget", "stride"), WHOLE),
    **dict.fromkeys(("context", "kv_cache_bytes", "max_sequences", "activation_group_size"), WHOLE),
    **dict.fromkeys(("stream", "enable_thinking", "strict", "mmap", "fallback", "deterministic"), FLAG),
    **dict.fromkeys(("kv_dtype", "eviction", "lm_head_int8", "prompt_lookup", "layout"), TEXT),
    "logit_bias": ("a mapping of token ids to numbers", _is_bias),
    "stop": ("a text or a list of texts", lambda value: _is_text(value) or _are(_is_text)(value)),
    "stop_token_ids": ("a list or set of token ids", _are(_is_whole)),
    "response_format": ("a mapping", _is_mapping),
    "tools": ("a list of mappings", _are(_is_mapping)),
    "progress": CALL,
    "pool": ("a MemoryPoolConfig", lambda value: isinstance(value, MemoryPoolConfig)),
}
_NEEDED = (
    *(
        "max_tokens",
        "stream",
        "stop",
        "stop_token_ids",
        "max_sequences",
        "kv_dtype",
        "eviction",
        "lm_head_int8",
        "prompt_lookup",
    ),
    *("mmap", "fallback", "deterministic", "stream_interval", "pool"),
)
"""None is no value of these; of the others it means the default."""


def check(name: str, value: object, kind: Kind) -> None:
    """UsageError unless the value is of this kind."""
    what, fits = kind
    try:
        good = fits(value)
    except Exception:  # noqa: BLE001 - whatever an object does when it is looked at, it is not what was asked for
        good = False
    if not good:
        raise UsageError(f"{name} must be {what}, not {short(value)}")


def check_options(options: Mapping[str, object]) -> None:
    """UsageError for an option that does not exist, or whose value is of the wrong kind."""
    for name, value in options.items():
        if name not in _OPTIONS:
            raise UsageError(f"there is no option '{name}'; there are {', '.join(sorted(_OPTIONS))}")
        if value is not None or name in _NEEDED:
            check(name, value, _OPTIONS[name])


def check_prompt(prompt: object) -> None:
    """A text or token ids."""
    check("prompt", prompt, ("a text or a list of token ids", lambda value: _is_text(value) or TOKENS[1](value)))


def is_batch(prompt: object) -> bool:
    """Whether these are several prompts: a list of texts, or of lists of token ids."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str | bytes)
        and len(prompt) > 0
        and not any(_is_whole(one) for one in prompt)
    )


def check_messages(messages: object) -> None:
    """A list of {"role": ..., "content": ...}."""
    what = 'a list of messages such as {"role": "user", "content": "Hello"}'
    check("messages", messages, (what, lambda value: isinstance(value, Sequence) and _are(_is_message)(value)))


def _is_message(value: object) -> bool:
    """A role, and a content or calls of tools."""
    if not isinstance(value, Mapping) or not _is_text(value.get("role")):
        return False
    content = value.get("content")
    if content is None:
        return "tool_calls" in value
    return _is_text(content) or _are(_is_mapping)(content)


def check_model(model: object) -> None:
    """What `load` opens: nothing, a name, a path, or an opened source."""
    fits = isinstance(model, str | PathLike) or model is None or hasattr(model, "config")
    check("model", model, ("a file, a folder, a name or an opened source", lambda _: fits))
