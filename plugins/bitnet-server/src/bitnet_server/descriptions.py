"""Descriptions of the model and its requests: llama.cpp's /props and /slots, vLLM's /tokenizer_info."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bitnet_server.response import Document
from bitnet_server.schema import NUMBERS
from bitnet_server.served_model import ServedModel
from bitnet_server.service import Service

if TYPE_CHECKING:  # it takes long to import: the server listens meanwhile
    from bitnet_core.api import Model


def model_document(one: ServedModel, name: str, created: int) -> Document:
    """Return a model of /v1/models: OpenAI's fields, llama.cpp's status, and size and shape."""
    status: Document = {"value": one.state}
    if one.state == "unloaded" and one.error is not None:
        status["failed"] = True
    document = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "bitnet",
        "status": status,
        "size": one.nbytes,
        "pinned": one.pinned,
    }
    if (model := one.model) is not None:
        document["meta"] = {
            "n_ctx": model.engine.max_model_len,
            "n_vocab": model.config.vocab,
            "device": model.device.info.request,
            "device_name": model.device.info.name,
        }
    return document


def props(one: ServedModel) -> Document:
    """Return the properties that the chat page shows, and those of llama.cpp's server that are known here.

    A model that is not loaded has only its name and state.
    """
    from bitnet_server.request_builder import usual_temperature  # it takes long to import: the server listens meanwhile

    model = one.model
    if model is None or one.service is None:
        return {"model": one.names[0], "model_alias": one.names[0], "state": one.state}
    service = one.service
    length, sequences = model.engine.max_model_len, service.slots
    defaults: Document = {name: getattr(model.defaults.values, name) for name in NUMBERS}
    defaults["temperature"] = usual_temperature(model.defaults)
    defaults["max_tokens"] = service.settings.max_tokens or -1  # as in llama-server: the room in the context
    devices = service.replicas.devices()
    return {
        "model": service.names[0],
        "state": one.state,
        "device": " + ".join(one.name for one in devices if one.state == "ready") or model.device.info.name,
        "devices": [asdict(one) for one in devices],
        "backend": model.device.info.backend,
        "n_ctx": length,
        "version": service.fingerprint,
        "slots": sequences,
        "health": service.health,
        "active_requests": service.active,
        "default_generation_settings": {"n_ctx": length, "params": defaults},
        "total_slots": sequences,
        "model_alias": service.names[0],
        "model_path": model.source.path.name,
        "chat_template": model.chat_template.source,
        "bos_token": _bos_token(model) or "",
        "eos_token": _eos_token(model) or "",
        "modalities": {"vision": False, "audio": False},
        "build_info": service.fingerprint,
    }


def slots(one: ServedModel) -> list[Document]:
    """Return the running and waiting requests of a model, without their texts."""
    service = one.service
    if one.model is None or service is None:
        return []
    return [
        {
            "id": request.id,
            "n_ctx": service.model.engine.max_model_len,
            "is_processing": state == "running",
            "state": state,
            "prompt_tokens": request.prompt_tokens,
            "generated_tokens": request.generated_tokens,
        }
        for state, request in service.replicas.requests()
    ]


def tokenizer_info(service: Service) -> Document:
    """Return the tokenizer's special tokens and chat template, as vLLM does and lm-eval reads them."""
    model = service.model
    return {
        "tokenizer_class": type(model.tokenizer).__name__,
        "bos_token": _bos_token(model),
        "eos_token": _eos_token(model),
        "pad_token": None,
        "add_bos_token": model.tokenizer.add_bos,
        "model_max_length": model.engine.max_model_len,
        "chat_template": model.chat_template.source,
    }


def _bos_token(model: Model) -> str | None:
    bos = model.tokenizer.bos_id
    return None if bos is None else model.tokenizer.token_text(bos)


def _eos_token(model: Model) -> str | None:
    """Return the end token that the file names, else the first of those that end a reply."""
    named: Any = model.source.tokenizer.get("tokenizer.ggml.eos_token_id")
    config: Any = model.source.tokenizer.get("tokenizer_config") or {}
    text = config.get("eos_token")
    if isinstance(text, dict):
        text = text.get("content")
    if isinstance(text, str):
        return text
    ends = model.tokenizer.eos_ids
    if isinstance(named, int) and named in ends:
        return model.tokenizer.token_text(named)
    return model.tokenizer.token_text(min(ends)) if ends else None
