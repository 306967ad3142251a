"""Chat templates: convert messages to text and token ids in the form that the model was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from bitnet_hal.errors import UsageError

from bitnet_core import json_limits
from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer.template_process import TemplateProcess
from bitnet_core.tokenizer.tokenizer import Tokenizer

MAX_TEMPLATE: Final = 1 << 18  # characters
MAX_DEPTH: Final = 64  # nesting levels of lists and mappings in a message
MAX_VALUES: Final = 1 << 16  # total of all messages

BITNET_TEMPLATE: Final = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = message['role'] | capitalize + ': '+ message['content'] | trim + '<|eot_id|>' %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
"""The template of the 2B-4T model's tokenizer_config.json."""

PLAIN_TEMPLATE: Final = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] | trim }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""A plain transcript, for models without a template and without an end-of-turn token, such as the 1bitLLM base
models."""

TOOLS: Final = "tool_use"
"""The name of the template for conversations with tools, as in transformers."""

_PLACEHOLDER: Final = "BITNET"
_PRIVATE_USE: Final = range(0xF0000, 0xFFFFE)


class ChatTemplate:
    """The chat template of one model.

    source: its jinja2 text. origin: the file, or the reason for a replacement (a placeholder, or no template at all).
    tool_source: the text for conversations with tools: that of a template named tool_use, or `source`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Use the `chosen_template`. Raises TokenizerError if it does not parse."""
        self._tokenizer = tokenizer
        self.source, self.origin = chosen_template(tokenizer)
        self.tool_source = tool_template(tokenizer) or self.source
        self._process = TemplateProcess(self.source)
        self._process.parse()

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Render the conversation as text, in a child process (`TemplateProcess`).

        messages: {"role": ..., "content": ...}. variables: further variables of the template (enable_thinking, tools).
        Raises UsageError if the template rejects the messages (raise_exception), TokenizerError if it fails, or exceeds
        its limits of time and memory.
        """
        _check_size([messages, variables])
        values = {
            **_plain(variables),
            "messages": _plain(messages),
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._special(self._tokenizer.bos_id),
            "eos_token": self._special(self._tokenizer.eos_id),
        }
        source = self.tool_source if variables.get("tools") else self.source
        try:
            return self._process.render(values, source)
        except TokenizerError:
            parsed = [_with_parsed_arguments(message) for message in values["messages"]]
            if parsed == values["messages"]:
                raise
            return self._process.render(values | {"messages": parsed}, source)  # a template for arguments as objects

    def chat_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        limit: int | None = None,
        **variables: Any,
    ) -> list[int]:
        """Encode the conversation, beginning with the bos id if the tokenizer adds one.

        Control tokens of the template are parsed; text in a message that looks like one stays plain text. Raises
        UsageError if the rendered text must have more than `limit` tokens.
        """
        _check_size([messages, variables])
        if limit is not None:
            self._tokenizer.check_fits("".join(_texts(messages)), limit)
        shield = _Shield(self._tokenizer.specials, [messages, variables])
        text = self.render(shield.covered(messages), add_generation_prompt, **shield.covered(variables))
        if limit is not None:
            self._tokenizer.check_fits(text, limit)
        if shield.used:
            ids = [token for part, special in shield.parts(text) for token in self._encode(part, special)]
        else:
            ids = self._encode(text, special=True)
        bos = self._tokenizer.bos_id
        if self._tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def close(self) -> None:
        """End the template's process; a later rendering starts a new one."""
        self._process.close()

    def _encode(self, text: str, special: bool) -> list[int]:
        return self._tokenizer.encode(text, add_bos=False, parse_special=special)

    def _special(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.token_text(token)


Origin = Literal["file", "placeholder", "missing"]
"""The origin of a template: the file, or the reason for a replacement."""


def chosen_template(tokenizer: Tokenizer) -> tuple[str, Origin]:
    """Return the template of a model and its origin, without parsing it.

    Microsoft's GGUF carries a placeholder (it contains BITNET and never ends a turn), which is replaced. Without a
    template, vocabularies that have <|eot_id|> get BITNET_TEMPLATE and all others PLAIN_TEMPLATE. Raises TokenizerError
    for a template that is not text, or too long.
    """
    source = _named(tokenizer.chat_template, "default")
    if source is not None and _PLACEHOLDER not in source:
        return _checked_length(source), "file"
    replacement = BITNET_TEMPLATE if "<|eot_id|>" in tokenizer.specials else PLAIN_TEMPLATE
    return replacement, "missing" if source is None else "placeholder"


def tool_template(tokenizer: Tokenizer) -> str | None:
    """Return the model's template for conversations with tools, None if it has no separate one. Raises TokenizerError
    as `chosen_template`."""
    named = _named(tokenizer.tool_template, TOOLS) or _named(tokenizer.chat_template, TOOLS, plain=False)
    return None if named is None else _checked_length(named)


def unreadable(tokenizer: Tokenizer) -> str:
    """Return the reason why the template of a model does not parse, "" if it does."""
    try:
        ChatTemplate(tokenizer).close()
    except TokenizerError as error:
        return str(error)
    return ""


def _with_parsed_arguments(message: Any) -> Any:
    """Return a message whose tool calls have arguments as objects, which OpenAI's format stores as JSON text."""
    if not isinstance(message, dict) or not isinstance(message.get("tool_calls"), list):
        return message
    return message | {"tool_calls": [_parsed_call(call) for call in message["tool_calls"]]}


def _parsed_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return call | {"function": _parsed_call(call["function"])}
    try:
        arguments = json.loads(call["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return call
    return call | {"arguments": arguments} if isinstance(arguments, dict) else call


def _checked_length(source: str) -> str:
    if len(source) > MAX_TEMPLATE:
        raise TokenizerError(f"the chat template has {len(source)} characters; the limit is {MAX_TEMPLATE}")
    return source


def _named(source: Any, name: str, *, plain: bool = True) -> str | None:
    """Return the template with this name. plain: a single template without a name matches every name."""
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == name]
        source = named[0].get("template") if named else None
    elif not plain:
        return None
    if source is None or (isinstance(source, str) and not source):
        return None
    if not isinstance(source, str):
        raise TokenizerError(f"the chat template of the model is {type(source).__name__}, not text")
    return source


def _check_size(value: Any) -> None:
    """Raise UsageError if messages are nested too deeply or have too many values."""
    if problem := json_limits.exceeds_limits(value, MAX_DEPTH, MAX_VALUES):
        raise UsageError(f"the messages {problem}")


def _plain(value: Any) -> Any:
    """Convert messages to types that JSON can represent."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


class _Shield:
    """A guard that hides control tokens in messages from the tokenizer.

    Their first character is replaced by a private-use character before rendering, and restored after the rendered text
    was split at the template's own control tokens.
    """

    def __init__(self, specials: Mapping[str, int], messages: Any) -> None:
        ordered = sorted(specials, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._starts = {special[:cut] for special in ordered for cut in range(1, len(special))}
        self._ends = {special[cut:] for special in ordered for cut in range(1, len(special))}
        self._lengths = range(1, max(map(len, ordered), default=1))
        present: set[str] = set().union(*_texts(messages))
        self._free = (chr(code) for code in _PRIVATE_USE if chr(code) not in present)
        self._cover: dict[str, str] = {}

    @property
    def used(self) -> bool:
        """True if any text was hidden."""
        return bool(self._cover)

    def covered(self, value: Any) -> Any:
        """Return a copy of messages in which the control tokens in strings are hidden."""
        if isinstance(value, str):
            return self._covered_text(value)
        if isinstance(value, Mapping):
            return {key: self.covered(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.covered(item) for item in value]
        return value

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Split the rendered text at its control tokens and restore hidden text; yields (text, is a control token)."""
        restore = str.maketrans({cover: char for char, cover in self._cover.items()})
        position = 0
        for match in self._pattern.finditer(text):
            if match.start() > position:
                yield text[position : match.start()].translate(restore), False
            yield match[0], True
            position = match.end()
        if position < len(text):
            yield text[position:].translate(restore), False

    def _covered_text(self, text: str) -> str:
        while self._pattern.search(text):
            text = self._pattern.sub(lambda match: self._hide(match[0][0]) + match[0][1:], text)
        # Text of a message and of the template may not form a control token together, even if the message is trimmed.
        starts = {0, len(text) - len(text.lstrip())}
        ends = {len(text), len(text.rstrip())}
        risky: set[int] = set()
        for size in self._lengths:
            risky.update(start for start in starts if text[start : start + size] in self._ends)
            risky.update(end - size for end in ends if size <= end and text[end - size : end] in self._starts)
        for index in risky:
            text = text[:index] + self._hide(text[index]) + text[index + 1 :]
        return text

    def _hide(self, char: str) -> str:
        if char not in self._cover:
            cover = next(self._free, None)
            if cover is None:
                raise UsageError("the messages contain all characters of a private-use plane, and a control token")
            self._cover[char] = cover
        return self._cover[char]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
