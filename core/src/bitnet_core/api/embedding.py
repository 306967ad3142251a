"""Embeddings of texts for the user: tokens, pooled rows, then the options for dimensions, length and type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from bitnet_hal.errors import UsageError

from bitnet_core.engine.engine import Engine
from bitnet_core.options.embedding import EmbedOptions
from bitnet_core.tokenizer import Tokenizer

Embeddings = npt.NDArray[np.float32] | npt.NDArray[np.int8]

_LEAST = np.float32(1e-12)
"""Minimum divisor of the normalization, as in torch's normalize."""


def embed(
    engine: Engine, tokenizer: Tokenizer, texts: Sequence[str | Sequence[int]], options: EmbedOptions
) -> Embeddings:
    """Return the embeddings [texts, dimensions] in the type of the options, as Model.embed."""
    pooling, hidden = engine.config.pooling, engine.config.hidden
    if pooling is None:
        raise UsageError("the model generates text; it has no embeddings")
    width = hidden if options.dimensions is None else options.dimensions
    if width > hidden:
        raise UsageError(f"dimensions must be from 1 to {hidden}, the model's own number, not {width}")
    rows = engine.embed([text_tokens(engine, tokenizer, text, truncate=options.truncate) for text in texts])[:, :width]
    if pooling.normalize:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _LEAST)
    return quantized(rows) if options.dtype == "int8" else rows


def text_tokens(engine: Engine, tokenizer: Tokenizer, text: str | Sequence[int], *, truncate: bool) -> list[int]:
    """Return the tokens of a text, with the special tokens before and after it; token ids are taken unchanged.

    truncate: drop tokens before the end token so that all fit in the context. Raises UsageError for an empty text, and
    for one that is too long.
    """
    limit = engine.max_model_len
    if not isinstance(text, str):
        return list(text)
    if not text:
        raise UsageError("a text to embed must not be empty")
    end = tokenizer.text_end
    if truncate:
        text = text[: tokenizer.most_characters(limit)]  # the rest would be encoded only to be dropped
    else:
        tokenizer.check_fits(text, limit)
    ids = tokenizer.encode(text, add_bos=tokenizer.add_bos)
    if len(ids) + len(end) > limit and not truncate:
        raise UsageError(
            f"a text to embed has {len(ids) + len(end)} tokens, and the context holds {limit}: shorten it, or truncate"
        )
    return [*ids[: limit - len(end)], *end]


def quantized(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    """Return rows f32[n, width] as int8, each scaled to a largest magnitude of 127: keeps angles, but not lengths."""
    largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), _LEAST)
    return np.asarray(np.rint(rows * (np.float32(127) / largest)), np.int8)
