"""Ollama's descriptions of models: /api/tags, /api/show, /api/ps, /api/version."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bitnet_hal.plugin import DeviceType
from msgspec import Struct

from bitnet_server.errors import ApiError
from bitnet_server.protocols.ollama import model_name
from bitnet_server.protocols.ollama_answer import timestamp
from bitnet_server.response import Document
from bitnet_server.served_model import ServedModel

if TYPE_CHECKING:  # it takes long to import: the server listens meanwhile
    from bitnet_core.api import Model

OLLAMA_VERSION = "0.12.6"
"""The version of Ollama whose fields these endpoints have; clients refuse servers that are too old."""

NEVER = "9999-12-31T23:59:59Z"
"""The time at which a loaded model is unloaded."""


_CAPABILITIES = ["completion", "tools"]
_UNKNOWN: Document = {"modified_at": timestamp(0), "details": {}, "model_info": {}}


class ShowRequest(Struct):
    """The body of POST /api/show; name is the older field."""

    model: str | None = None
    name: str | None = None


class PullRequest(Struct):
    """The body of POST /api/pull; name is the older field."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None


def named_model(request: ShowRequest | PullRequest) -> str:
    """Return the name of the model that a request asks for. Raises ApiError 400 if it names none."""
    name = request.model or request.name
    if not name:
        raise ApiError(400, "model is missing", param="model")
    return model_name(name)


def tags(served: Sequence[ServedModel]) -> Document:
    """Return every name of every model, as GET /api/tags does."""
    return {"models": [_entry(one, name) for one in served for name in one.names]}


def running(served: Sequence[ServedModel]) -> Document:
    """Return the loaded models, as GET /api/ps does."""
    return {"models": [_running(one) for one in served if one.model is not None]}


def version() -> Document:
    """Return the version of the API, as GET /api/version does."""
    return {"version": OLLAMA_VERSION}


def show(one: ServedModel) -> Document:
    """Return the description of a model, as POST /api/show does; the parts that a loaded model knows may be empty."""
    model = one.model
    if model is None:
        return {"modelfile": "", "parameters": "", "template": "", "capabilities": _CAPABILITIES} | _UNKNOWN
    generates = [*_CAPABILITIES, *(["thinking"] if model.thinking_tags else [])]
    return {
        "modelfile": "",
        "parameters": "",
        "template": model.chat_template.source,
        "details": _details(model),
        "model_info": _model_info(model),
        "capabilities": ["embedding"] if model.config.pooling else generates,
        "modified_at": _modified(model),
    }


def _running(one: ServedModel) -> Document:
    model = one.model
    assert model is not None
    assert one.service is not None
    memory = one.service.replicas.memory()
    held = memory.get("weights", 0) + memory.get("kv_cache", 0)  # nothing without a device
    on_gpu = model.device.info.type in (DeviceType.GPU, DeviceType.INTEGRATED)
    left = one.seconds_left
    more = {
        "expires_at": NEVER if left is None else timestamp(time.time() + left),
        "size": held,
        "size_vram": held if on_gpu else 0,
        "context_length": model.engine.max_model_len,
    }
    return _entry(one, one.names[0]) | more


def _entry(one: ServedModel, name: str) -> Document:
    model = one.model
    if model is None:
        return {"name": name, "model": name, "size": one.nbytes or 0, "digest": ""} | _UNKNOWN
    return {
        "name": name,
        "model": name,
        "modified_at": _modified(model),
        "size": sum(tensor.nbytes for tensor in model.source.tensors),
        "digest": _digest(model),
        "details": _details(model),
    }


def _digest(model: Model) -> str:
    """Return a digest of the list of tensors: clients tell models apart by it, and weights take long to read."""
    found = hashlib.sha256()
    for tensor in model.source.tensors:
        found.update(f"{tensor.name} {tensor.dtype} {tensor.shape} {tensor.nbytes}\n".encode())
    return found.hexdigest()


def _modified(model: Model) -> str:
    """Return when the file was written; 1970 if it is gone, or the model never had one."""
    try:
        return timestamp(model.source.path.stat().st_mtime)
    except OSError:
        return timestamp(0)


def _details(model: Model) -> Document:
    return {
        "parent_model": "",
        "format": "gguf" if model.source.format.startswith("GGUF") else "safetensors",
        "family": model.config.arch,
        "families": [model.config.arch],
        "parameter_size": _rounded(parameter_count(model)),
        "quantization_level": model.source.format.rpartition(", ")[2],
    }


def parameter_count(model: Model) -> int:
    """Return the number of weights; of packed Hugging Face tensors, four a byte."""
    count = 0
    for tensor in model.source.tensors:
        elements = 1
        for size in tensor.shape:
            elements *= size
        count += elements * (4 if tensor.dtype == "U8" else 1)
    return count


def _rounded(count: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count / 1e3:.0f}K"


def _model_info(model: Model) -> dict[str, Any]:
    """Return the model's shape under the keys of GGUF."""
    config = model.config
    shape = {
        "context_length": model.engine.max_model_len,
        "embedding_length": config.hidden,
        "block_count": config.n_layers,
        "feed_forward_length": config.ffn,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "vocab_size": config.vocab,
    }
    general = {
        "general.architecture": config.arch,
        "general.basename": model.name,
        "general.parameter_count": parameter_count(model),
    }
    return general | {f"{config.arch}.{name}": value for name, value in shape.items()}
