"""Checks of the arguments of the Python API, so that a wrong one is reported by name before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from os import PathLike
from typing import Any, get_type_hints

from bitnet_hal.errors import UsageError, short

from bitnet_core.options.fields import unknown_option
from bitnet_core.options.kinds import TEXT, TOKENS, WHOLE, Kind, checked, kind_of

TEXT_OR_TOKENS = Kind("a text or a list of token ids", lambda value: _text_or_tokens(value))
TEXTS = Kind("a list of texts, or of lists of token ids", lambda value: _texts(value))


@cache
def _kinds(options: type) -> dict[str, Kind]:
    return {name: kind_of(annotation) for name, annotation in get_type_hints(options).items()}


def check_options(given: Mapping[str, object], options: type) -> dict[str, Any]:
    """Return keyword arguments as plain Python values. options: the TypedDict that declares them.

    Raises UsageError for an unknown option, and for a value of a wrong type.
    """
    kinds = _kinds(options)
    for name in given:
        if name not in kinds:
            raise unknown_option(name, kinds)
    return {name: checked(name, value, kinds[name]) for name, value in given.items()}


def check(name: str, value: object, annotation: Any) -> Any:
    """Return an argument as a plain Python value. Raises UsageError if it is not of the annotated type."""
    return checked(name, value, kind_of(annotation))


def check_prompt(prompt: object) -> None:
    """Raise UsageError unless the prompt is a text or token ids."""
    checked("prompt", prompt, TEXT_OR_TOKENS)


def _text_or_tokens(value: Any) -> Any:
    return TEXT.convert(value) if isinstance(value, str) else TOKENS.convert(value)


def _texts(value: Any) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TypeError(value)
    return [_text_or_tokens(one) for one in value]


def is_batch(prompt: object) -> bool:
    """Return True for several prompts: a list of texts, or of lists of token ids."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str | bytes)
        and len(prompt) > 0
        and not any(_fits(one, WHOLE) for one in prompt)
    )


def _fits(value: object, kind: Kind) -> bool:
    try:
        kind.convert(value)
    except Exception:  # noqa: BLE001 - an object that cannot be inspected is not a batch
        return False
    return True


def check_messages(messages: object) -> None:
    """Raise UsageError unless the messages are a list of {"role": ..., "content": ...}."""
    words = 'a list of messages such as {"role": "user", "content": "Hello"}'
    checked("messages", messages, Kind(words, _messages))


def _messages(value: Any) -> Any:
    listed = kind_of(Sequence[Mapping[str, Any]]).convert(value)
    if not isinstance(value, Sequence) or not all(map(_is_message, listed)):
        raise TypeError(value)
    return value


def _is_message(message: Mapping[str, Any]) -> bool:
    """Return True for a message with a role, and with content or tool calls."""
    content = message.get("content")
    if not isinstance(message.get("role"), str):
        return False
    if content is None:
        return "tool_calls" in message
    return isinstance(content, str) or _fits(content, kind_of(Sequence[Mapping[str, Any]]))


def check_model(model: object) -> None:
    """Raise UsageError unless the model is None, a name, a path or an opened source."""
    if isinstance(model, str | PathLike):
        check("model", model, PathLike)
    elif model is not None and not hasattr(model, "config"):
        raise UsageError(f"model must be a file, a folder, a name or an opened source, not {short(model)}")
