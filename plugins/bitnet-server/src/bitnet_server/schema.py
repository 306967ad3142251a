"""Request schemas: fields, types and ranges, checked strictly; null means absent, unknown fields are ignored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from bitnet_core.options.fields import DeclaredOption, options_of
from bitnet_core.options.sampling import SamplingParams
from msgspec import Meta, Struct

from bitnet_server.errors import ApiError

Tokens = Annotated[int, Meta(ge=-1)]
"""A limit on generated tokens; -1 for the room in the context, as in llama-server."""

Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
Bias = Annotated[float, Meta(ge=-100, le=100)]


Choices = Annotated[list[str], Meta(min_length=1, max_length=1024)]


class StreamOptions(Struct):
    """The field stream_options."""

    include_usage: bool | None = None


class ResponseFormat(Struct):
    """The field response_format, with llama.cpp's schema beside json_object, and the types regex and grammar."""

    type: str
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """The field structured_outputs of vLLM."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


NUMBERS = {name: one for name, one in options_of(SamplingParams).items() if one.plain in (int, float) and one.flags}
"""The sampling options that are numbers, by name: fields of requests, and settings of the chat page."""

OPENAI_RANGES = {
    "temperature": Meta(ge=0, le=2),
    "top_k": Meta(ge=-1, le=1 << 31),  # -1 for all, as in vLLM
    "seed": Meta(ge=-(1 << 63), le=(1 << 63) - 1),
}
"""Ranges that differ from those of SamplingParams, by OpenAI's API reference unless a comment names another."""


def request_range(one: DeclaredOption) -> Meta:
    """Return the range of a sampling option in a request."""
    own = Meta(ge=one.option.at_least, le=one.option.at_most)
    return OPENAI_RANGES.get(one.name, own)


def _number_fields() -> list[tuple[str, Any, None]]:
    return [
        (name, Annotated[one.plain, request_range(one)] | None, None)
        for one in NUMBERS.values()
        for name in (one.name, *one.option.aliases)
    ]


if TYPE_CHECKING:

    class SamplingFields(Struct, kw_only=True):
        """The sampling options that are numbers."""

        temperature: float | None = None
        top_p: float | None = None
        seed: int | None = None
else:
    SamplingFields = msgspec.defstruct("SamplingFields", _number_fields(), kw_only=True, module=__name__)


def given_numbers(request: SamplingFields) -> dict[str, Any]:
    """Return the sampling options of a request by their names in SamplingParams; None if the request has none."""
    found: dict[str, Any] = {}
    for one in NUMBERS.values():
        values = (getattr(request, name) for name in (one.name, *one.option.aliases))
        found[one.name] = next((value for value in values if value is not None), None)
    return found


class Common(SamplingFields, kw_only=True):
    """Fields that chats and completions share."""

    model: str | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    best_of: int | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    regex: str | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None


_TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of parts with a text, those of OpenAI's other API among them."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some clients begin UTF-8 with it, and a JSON parser may ignore it (RFC 8259, 8.1)."""


class ContentPart(Struct):
    """A part of a message's content; only text and a refusal of an earlier answer can be read."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def readable(self) -> str | None:
        """The text of the part; None if it has none."""
        return self.refusal if self.type == "refusal" else self.text if self.type in _TEXT_PARTS else None


class CalledFunction(Struct):
    """The function of a tool call in a message."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(Struct):
    """A tool call that an assistant made before."""

    function: CalledFunction
    id: str | None = None
    type: str = "function"


class Message(Struct):
    """A message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


FUNCTION_NAME = r"^[A-Za-z0-9_.\-]{1,64}$"


class Function(Struct):
    """A function that may be called. parameters: a JSON schema."""

    name: Annotated[str, Meta(pattern=FUNCTION_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct):
    """An entry of tools; only those of type function can be called. The fields of its function may stand beside the
    type, as in OpenAI's other API."""

    type: str = "function"
    function: Function | None = None
    name: Annotated[str, Meta(pattern=FUNCTION_NAME)] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(Struct):
    """The function of a named tool_choice."""

    name: str


class ListedTool(Struct):
    """A tool of allowed_tools."""

    function: NamedFunction | None = None
    name: str | None = None


class AllowedTools(Struct):
    """The field allowed_tools of a tool_choice."""

    mode: str
    tools: Annotated[list[ListedTool], Meta(max_length=128)]


class NamedTool(Struct):
    """A tool_choice that is an object: it names a function, or those that may be called, or a mode.

    Its fields may stand beside the type, as in OpenAI's other API and in Anthropic's.
    """

    type: str = "function"
    function: NamedFunction | None = None
    name: str | None = None
    allowed_tools: AllowedTools | None = None
    mode: str | None = None
    tools: Annotated[list[ListedTool], Meta(max_length=128)] | None = None


class ChatRequest(Common, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    truncation: Literal["auto", "disabled"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None


class CompletionRequest(Common, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=-1)] | None = None
    parse_special: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None


class ModelRequest(Struct):
    """The body of POST /models/load and /models/unload, as llama-server's router has them."""

    model: str


class TokenizeRequest(Struct):
    """The body of POST /tokenize, as in llama-server and (prompt) vLLM."""

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    add_special: bool = False
    add_special_tokens: bool = False  # vLLM's name
    parse_special: bool = False


class DetokenizeRequest(Struct):
    """The body of POST /detokenize."""

    tokens: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=1 << 20)]
    model: str | None = None


class TemplateRequest(Struct):
    """The body of POST /apply-template."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=4096)]
    model: str | None = None


R = TypeVar("R", bound=Struct)

_DECODERS: dict[type[Struct], msgspec.json.Decoder[Any]] = {}


def parse(body: bytes, kind: type[R]) -> R:
    """Parse the JSON of a request. Raises ApiError 400 that names the field."""
    decoder = _DECODERS.setdefault(kind, msgspec.json.Decoder(kind))
    try:
        request: R = decoder.decode(body.removeprefix(_BYTE_ORDER_MARK))
    except msgspec.ValidationError as exc:
        text = str(exc)
        found = re.search(r"`\$\.?([^`]*)`$", text) or re.search(r"field `([^`]*)`", text)
        raise ApiError(400, text, param=found[1] if found and found[1] else None) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ApiError(400, f"the body is not JSON: {exc}") from exc
    return request
