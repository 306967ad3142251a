"""Export a source's tokenizer as GGUF keys or as the files of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from bitnet_hal.errors import short
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend

from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer.chat import TOOLS, chosen_template, tool_template
from bitnet_core.tokenizer.load import load_tokenizer
from bitnet_core.tokenizer.patterns import steps
from bitnet_core.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer, pre_tokenizer
from bitnet_core.tokenizer.tokenizer import Tokenizer
from bitnet_core.tokenizer.vocabulary import END_OF_TURN_TEXTS, TokenType

PROBES: Final = (
    "e\u0301 u\u0308ber \u1112\u1161\u11ab\u1100\u1173\u11af \u212b \ufb01",  # decomposed, and compatibility forms
    "  two spaces first, and  1 digit; it'sword        behind eight",
    "Hello  world, they'll say: DON'T 'S 12345 1.5e10 (Hi (Hi)) f(x)[0] += y_1; a-b_c ~`^|<>=$",
    " \t two\n\n  three   \n four!!\n?\r\n\r\n 'five' ½²٣ naïve Übergrößen日本語テキスト한국어🙂🙂 हिन्दी x",
)
"""Texts that distinguish pre-tokenizers, normalizers and prefixes."""


_NO_PLACE: Final = "GGUF has no place for that rule; convert to safetensors, or use the model's own GGUF file"


def gguf_keys(keys: Mapping[str, Any], vocab: int) -> dict[str, Any]:
    """Return the tokenizer.* keys of a GGUF file for a model with `vocab` embedding rows.

    keys: ModelSource.tokenizer. A missing `pre` is filled in and a placeholder template replaced. Raises TokenizerError
    for a tokenizer that GGUF cannot describe.
    """
    tokenizer = load_tokenizer(keys)
    written = _gguf_keys_of_gguf(keys) if keys["kind"] == "gguf" else _gguf_keys_of_folder(keys, tokenizer)
    _check_same(tokenizer, load_tokenizer({"kind": "gguf", **written}), _NO_PLACE)
    source, origin = chosen_template(tokenizer)
    if origin != "missing":
        written["tokenizer.chat_template"] = source
    if (tools := tool_template(tokenizer)) is not None:
        written[f"tokenizer.chat_template.{TOOLS}"] = tools
    missing = vocab - len(written["tokenizer.ggml.tokens"])
    if missing > 0:
        written["tokenizer.ggml.tokens"] += [f"[PAD{vocab - missing + i}]" for i in range(missing)]
        filler = np.full(missing, TokenType.UNUSED, np.int32)
        written["tokenizer.ggml.token_type"] = np.concatenate([written["tokenizer.ggml.token_type"], filler])
        if "tokenizer.ggml.scores" in written:
            low = np.full(missing, -1e4, np.float32)
            written["tokenizer.ggml.scores"] = np.concatenate([written["tokenizer.ggml.scores"], low])
    return written


def _gguf_keys_of_gguf(keys: Mapping[str, Any]) -> dict[str, Any]:
    arrays = ("tokens", "merges", "token_type", "scores")
    written: dict[str, Any] = {
        key: value
        for key, value in keys.items()
        if key.startswith("tokenizer.") and isinstance(value, str | bool | int | float)
    }
    for name in arrays:
        value = keys.get(f"tokenizer.ggml.{name}")
        if value is not None:
            dtype = {"token_type": np.int32, "scores": np.float32}.get(name)
            written[f"tokenizer.ggml.{name}"] = list(value) if dtype is None else np.asarray(value, dtype)
    count = len(written["tokenizer.ggml.tokens"])
    written.setdefault("tokenizer.ggml.token_type", np.full(count, TokenType.NORMAL, np.int32))
    if written["tokenizer.ggml.model"] == "gpt2" and "tokenizer.ggml.pre" not in written:
        written["tokenizer.ggml.pre"] = pre_tokenizer(None, written["tokenizer.ggml.tokens"]).name
    return written


def _gguf_keys_of_folder(keys: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    document = json.loads(tokenizer.to_json())
    merges = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in document["model"]["merges"]]
    types = list(tokenizer.types)
    written: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2" if tokenizer.byte_level else "llama",
        # an id without a token keeps its place
        "tokenizer.ggml.tokens": [text or f"[PAD{token}]" for token, text in enumerate(tokenizer.tokens)],
        "tokenizer.ggml.add_bos_token": tokenizer.add_bos,
    }
    if tokenizer.byte_level:
        written["tokenizer.ggml.pre"] = _matching_rule(document).name
        written["tokenizer.ggml.merges"] = [" ".join(pair) for pair in merges]
    else:
        written["tokenizer.ggml.add_space_prefix"] = _adds_space(document)
        written["tokenizer.ggml.scores"] = _scores(tokenizer, merges)
        unknown = document["model"].get("unk_token")
        if unknown in tokenizer.tokens:
            types[tokenizer.tokens.index(unknown)] = TokenType.UNKNOWN
            written["tokenizer.ggml.unknown_token_id"] = tokenizer.tokens.index(unknown)
    written["tokenizer.ggml.token_type"] = np.array(types, np.int32)
    ends = [token for token in sorted(tokenizer.eos_ids) if token != tokenizer.eos_id]
    turn = [token for token in ends if tokenizer.token_text(token) in END_OF_TURN_TEXTS] or ends
    named = {
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "eot": turn[0] if turn else None,
        "padding": _padding(keys, tokenizer),
    }
    if tokenizer.text_end:
        written["tokenizer.ggml.add_eos_token"] = True
        named["eos"] = tokenizer.text_end[0]
    return written | {f"tokenizer.ggml.{name}_token_id": token for name, token in named.items() if token is not None}


def probes(tokenizer: Tokenizer) -> list[str]:
    """Return texts that reveal differences between tokenizers of one vocabulary, also after a special token."""
    special = next(iter(tokenizer.specials), None)
    return [*PROBES, *([] if special is None else [f"{special}word {special} word"])]


def _check_same(tokenizer: Tokenizer, written: Tokenizer, why: str) -> None:
    """Raise TokenizerError, naming a text, if the written tokenizer encodes it differently."""
    if tokenizer.text_end != written.text_end:
        raise TokenizerError(f"the tokenizer ends a text with the tokens {short(tokenizer.text_end)}: {why}")
    for text in probes(tokenizer):
        for special in (False, True):
            ids, other = (each.encode(text, add_bos=False, parse_special=special) for each in (tokenizer, written))
            if ids != other:
                raise TokenizerError(
                    f"the tokenizer would change: {short(text)} is encoded as {short(ids)}, and after the conversion "
                    f"as {short(other)}: {why}"
                )


def _adds_space(document: Mapping[str, Any]) -> bool:
    """Return whether a SentencePiece tokenizer.json puts a space before a text."""
    parts = [*steps(document.get("normalizer")), *steps(document.get("pre_tokenizer"))]
    return any(
        step.get("type") == "Prepend" or (step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in parts
    )


def _matching_rule(document: Mapping[str, Any]) -> PreTokenizer:
    """Return the GGUF pre-tokenizer that splits text as that of a tokenizer.json."""
    own = Backend.from_str(json.dumps(document)).pre_tokenizer
    ignore_merges = bool(document["model"].get("ignore_merges"))
    composes = "NFC" in [step.get("type") for step in steps(document.get("normalizer"))]
    if own is not None:
        expected = [[piece for piece, _ in own.pre_tokenize_str(text)] for text in PROBES]
        for rule in PRE_TOKENIZERS:
            splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
            splitter = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
            found = [[piece for piece, _ in splitter.pre_tokenize_str(text)] for text in PROBES]
            if found == expected and (rule.ignore_merges, rule.nfc) == (ignore_merges, composes):
                return rule
    raise TokenizerError(
        "GGUF has no name for the pre-tokenizer of this tokenizer.json, so the text would be split wrongly; "
        "convert to safetensors instead"
    )


def _scores(tokenizer: Tokenizer, merges: list[list[str]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return SPM scores in the order of the merges: minus the rank of the first merge that yields the token."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    if len(merges) >= 1 << 24:
        raise TokenizerError(f"the tokenizer has {len(merges)} merges; f32 scores rank at most {1 << 24}")
    return np.array([-float(ranks.get(text, len(merges))) for text in tokenizer.tokens], np.float32)


def _padding(keys: Mapping[str, Any], tokenizer: Tokenizer) -> int | None:
    stated = keys["tokenizer_config"].get("pad_token") if keys.get("tokenizer_config") else None
    text = stated.get("content") if isinstance(stated, dict) else stated
    return tokenizer.tokens.index(text) if isinstance(text, str) and text in tokenizer.tokens else None


def folder_files(keys: Mapping[str, Any], context: int) -> dict[str, str]:
    """Return tokenizer.json, tokenizer_config.json and generation_config.json by name. Raises TokenizerError if the
    tokenizer does not load."""
    tokenizer = load_tokenizer(keys)
    if keys["kind"] == "hf":
        document, config = keys["tokenizer_json"], dict(keys.get("tokenizer_config") or {})
        if tokenizer.add_bos and Backend.from_str(document).encode("").ids[:1] != [tokenizer.bos_id]:
            document = json.dumps(
                _with_ends(tokenizer), ensure_ascii=False
            )  # transformers reads the bos rule only from this file
        generation = dict(keys.get("generation_config") or {})
    else:
        document = json.dumps(_with_ends(tokenizer), ensure_ascii=False)
        config = _config_of_gguf(keys, tokenizer, context)
        again = load_tokenizer({"kind": "hf", "tokenizer_json": document, "tokenizer_config": config})
        _check_same(tokenizer, again, "tokenizer.json has no place for that rule; convert to GGUF instead")
        generation = {"eos_token_id": sorted(tokenizer.eos_ids)}
        if tokenizer.bos_id is not None:
            generation["bos_token_id"] = tokenizer.bos_id
    source, origin = chosen_template(tokenizer)
    if origin == "placeholder" or (keys["kind"] == "gguf" and origin == "file"):
        config["chat_template"] = source
    if (tools := tool_template(tokenizer)) is not None:
        config["chat_template"] = [{"name": "default", "template": source}, {"name": TOOLS, "template": tools}]
    texts = {"tokenizer_config.json": config, "generation_config.json": generation}
    return {"tokenizer.json": document} | {
        name: json.dumps(values, indent=2, ensure_ascii=False) + "\n" for name, values in texts.items()
    }


def _with_ends(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return tokenizer.json with a post-processor that puts the bos token first and the ids of text_end last if the
    model needs them."""
    document: dict[str, Any] = json.loads(tokenizer.to_json())
    starts = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    specials = {token: tokenizer.token_text(token) for token in (*starts, *tokenizer.text_end)}

    def parts(name: str, kind: int) -> list[dict[str, Any]]:
        before, behind = (
            [{"SpecialToken": {"id": specials[token], "type_id": kind}} for token in tokens]
            for tokens in (starts, tokenizer.text_end)
        )
        return [*before, {"Sequence": {"id": name, "type_id": kind}}, *behind]

    if specials:
        document["post_processor"] = {
            "type": "TemplateProcessing",
            "single": parts("A", 0),
            "pair": [*parts("A", 0), *parts("B", 1)],
            "special_tokens": {
                text: {"id": text, "ids": [token], "tokens": [text]} for token, text in specials.items()
            },
        }
    return document


def _config_of_gguf(keys: Mapping[str, Any], tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": tokenizer.add_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    padding = keys.get("tokenizer.ggml.padding_token_id")
    for name, token in (("bos", tokenizer.bos_id), ("eos", tokenizer.eos_id), ("pad", padding)):
        if token is not None and tokenizer.token_text(token):
            config[f"{name}_token"] = tokenizer.token_text(token)
    return config
