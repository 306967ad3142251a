"""Load a model's Tokenizer from the keys of its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitnet_hal.errors import short

from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer.gguf import tokenizer_from_vocabulary
from bitnet_core.tokenizer.huggingface import tokenizer_from_json
from bitnet_core.tokenizer.tokenizer import Tokenizer
from bitnet_core.tokenizer.vocabulary import parse_vocabulary


def load_tokenizer(keys: Mapping[str, Any], *, prepared: bool = True) -> Tokenizer:
    """Load the tokenizer of a ModelSource (its `tokenizer` mapping). Raises TokenizerError if it is missing or
    malformed.

    prepared: prepare it for any text (Tokenizer.prepare); otherwise a GGUF vocabulary loads faster.
    """
    kind = keys.get("kind")
    if kind == "gguf":
        tokenizer = tokenizer_from_vocabulary(parse_vocabulary(keys))
        tokenizer.chat_template = keys.get("tokenizer.chat_template")
        tokenizer.tool_template = keys.get("tokenizer.chat_template.tool_use")
        if prepared:
            tokenizer.prepare()
        return tokenizer
    if kind == "hf":
        text, config = keys.get("tokenizer_json"), keys.get("tokenizer_config") or {}
        if not isinstance(text, str) or not text:
            raise TokenizerError("the folder has no tokenizer.json; download it from the model's repository")
        if not isinstance(config, Mapping):
            raise TokenizerError("tokenizer_config.json does not hold an object")
        generation = keys.get("generation_config") or {}
        tokenizer = tokenizer_from_json(text, config, generation.get("eos_token_id"))
        tokenizer.chat_template = config.get("chat_template")
        tokenizer.tool_template = keys.get("tool_template")
        return tokenizer
    raise TokenizerError(f"unknown kind of tokenizer: {short(kind)}")
