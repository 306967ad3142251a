"""The requested form of an answer, by the fields of OpenAI, llama.cpp and vLLM. None of them is ignored."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec
from bitnet_core.structured import Grammar, grammar_of
from bitnet_hal.errors import UsageError

from bitnet_server.errors import ApiError
from bitnet_server.schema import Common

_VLLM: Final = ("json", "regex", "choice", "grammar")
"""Kinds of structured_outputs, and of the older fields guided_json, guided_regex, ..."""

_FIELDS: Final = (
    "response_format",
    "regex",
    "grammar",
    "json_schema",
    "structured_outputs",
    *(f"guided_{kind}" for kind in _VLLM),
)


def grammar_in(request: Common) -> Grammar | None:
    """Return the grammar that a request asks for. Raises ApiError 400, which names the field, if it is not valid or if
    there are several."""
    asked = _asked(request)
    if len(asked) > 1:
        raise ApiError(400, f"{' and '.join(asked)} exclude each other", param="response_format")
    for field, form in asked.items():
        try:
            return grammar_of(form)
        except UsageError as exc:
            raise ApiError(400, str(exc), param=field) from exc
    return None


def asks_for_form(request: Common) -> bool:
    """Return True if a field asks for a form."""
    return any(getattr(request, field) is not None for field in _FIELDS)


def param_of(request: Common) -> str:
    """Return the field that asks for a form."""
    return next(iter(_asked(request)), "response_format")


def _asked(request: Common) -> dict[str, dict[str, Any]]:
    """Return the forms that a request asks for, as response_formats, by their fields."""
    asked: dict[str, dict[str, Any]] = {}
    if request.response_format is not None:
        form = msgspec.to_builtins(request.response_format)
        asked["response_format"] = {key: value for key, value in form.items() if value is not None}
    for field, kind in (("regex", "regex"), ("grammar", "grammar"), ("json_schema", "json")):
        if (value := getattr(request, field)) is not None:
            asked[field] = _form(field, kind, value)
    for kind in _VLLM:
        if (value := getattr(request, f"guided_{kind}")) is not None:
            asked[f"guided_{kind}"] = _form(f"guided_{kind}", kind, value)
    if request.structured_outputs is not None:
        asked["structured_outputs"] = _structured_outputs(request)
    return asked


def _structured_outputs(request: Common) -> dict[str, Any]:
    given = request.structured_outputs
    forms = [(kind, value) for kind in _VLLM if (value := getattr(given, kind)) is not None]
    if given is not None and given.json_object:
        forms.append(("json", {"type": "object"}))
    if len(forms) != 1:
        text = "structured_outputs needs exactly one of json, regex, choice, grammar and json_object"
        raise ApiError(400, text, param="structured_outputs")
    return _form("structured_outputs", *forms[0])


def _form(field: str, kind: str, value: Any) -> dict[str, Any]:
    """Return the response_format of a field's value."""
    if kind == "json":
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as exc:
                raise ApiError(400, f"{field} is not JSON: {exc}", param=field) from exc
        return {"type": "json_schema", "json_schema": {"schema": value}}
    if kind == "choice":
        return {"type": "regex", "regex": "|".join(_literal(text) for text in value)}
    return {"type": kind, kind: value}


def _literal(text: str) -> str:
    """Return a regular expression that matches a text."""
    return re.sub(r"[^\w\s]", lambda match: f"\\x{{{ord(match[0]):x}}}", text)
