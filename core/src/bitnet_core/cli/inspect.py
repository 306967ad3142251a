"""`bitnet inspect`: the contents of a model file, and findings about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitnet_core.cli.console import print_json, print_table, say
from bitnet_core.cli.options import JsonOption
from bitnet_core.cli.parameters import Field, expanded
from bitnet_core.options.loading import Layout, LoadOptions
from bitnet_core.units import size

if TYPE_CHECKING:
    from bitnet_core.model.source import ModelSource

_SHOWN = 300  # characters of a value that a table shows
_TEMPLATES = {
    "file": "chat template",
    "placeholder": "chat template taken from its family",
    "missing": "no chat template",
}


def register(app: typer.Typer) -> None:
    app.command("inspect")(inspect)


@expanded
def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A GGUF file, a model folder or hf:OWNER/REPO[:FILE].")],
    as_json: JsonOption = False,
    layout: Annotated[Layout | None, Field(LoadOptions)] = None,
    all_tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor, not only their kinds.")] = False,
) -> None:
    """Show the contents of a model file, and findings with their evidence.

    Metadata, tensors, formats, sizes, the layout of I2_S and the activation.

    Exit code 3 if the model is refused; the message says why.
    """
    from bitnet_core.api import settle_layout
    from bitnet_core.formats.open import open_model
    from bitnet_core.hub import local

    source = open_model(local(file, say), layout=layout)
    try:
        settle_layout(source)
        found = describe(source)
    finally:
        source.close()
    if as_json:
        print_json(found)
    else:
        _show(found, all_tensors)


def describe(source: ModelSource) -> dict[str, Any]:
    """Return a model as JSON: file, format, size, config, metadata, kinds of tensors, tensors, tokenizer, findings."""
    kinds: dict[str, dict[str, int]] = {}
    for tensor in source.tensors:
        kind = kinds.setdefault(tensor.dtype, {"tensors": 0, "bytes": 0})
        kind["tensors"] += 1
        kind["bytes"] += tensor.nbytes
    return {
        "file": str(source.path),
        "format": source.format,
        "bytes": sum(tensor.nbytes for tensor in source.tensors),
        "config": asdict(source.config),
        "kinds": kinds,
        "tokenizer": _tokenizer(source),
        "findings": [asdict(finding) for finding in source.findings],
        "metadata": {key: _plain(value) for key, value in source.metadata.items()},
        "tensors": [asdict(tensor) for tensor in source.tensors],
    }


def _tokenizer(source: ModelSource) -> dict[str, Any]:
    """Return the tokenizer's properties, or the reason why it does not load; weights can be inspected without it."""
    from bitnet_core.errors import TokenizerError
    from bitnet_core.tokenizer import load_tokenizer
    from bitnet_core.tokenizer.chat import chosen_template, unreadable

    try:
        tokenizer = load_tokenizer(source.tokenizer)
        origin = chosen_template(tokenizer)[1]
    except TokenizerError as error:
        return {"error": str(error)}
    return {
        "kind": "byte-level BPE" if tokenizer.byte_level else "SentencePiece BPE",
        "tokens": tokenizer.vocab_size,
        "bos": tokenizer.bos_id,
        "add_bos": tokenizer.add_bos,
        "stop": {str(token): tokenizer.token_text(token) for token in sorted(tokenizer.eos_ids)},
        "chat_template": origin,
        "chat_template_error": unreadable(tokenizer),
    }


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent: numbers that are not finite become text."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _show(found: dict[str, Any], all_tensors: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    def table(title: str, rows: list[tuple[str, ...]]) -> None:
        drawn = Table(
            title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
        )
        for row in rows:
            drawn.add_row(*(Text(_short(cell), overflow="fold") for cell in row))  # text of the file is never markup
        print_table(drawn)

    config = found["config"]
    heads = f"{config['n_heads']} heads of {config['head_dim']}, {config['n_kv_heads']} key-value heads"
    shape = f"{config['n_layers']} layers, hidden {config['hidden']}, FFN {config['ffn']}, {heads}"
    rope = f"theta {config['rope_theta']:g}, " + ("pairs (2j, 2j+1)" if config["rope_interleaved"] else "halves")
    if 0 < config["rope_dim"] < config["head_dim"]:
        rope += f", {config['rope_dim']} elements of a head"
    if config["rope_scaling"] != "none":
        rope += f", {config['rope_scaling']} scaling by {config['rope_factor']:g}"
    kinds = [f"{kind['tensors']} {name} ({size(kind['bytes'])})" for name, kind in found["kinds"].items()]
    rows: list[tuple[str, ...]] = [
        ("File", f"{found['file']} ({size(found['bytes'])} of tensors)"),
        ("Format", found["format"]),
        ("Model", f"{config['name']} ({config['arch']})"),
        ("Shape", shape),
        *_delta(config),
        *_experts(config),
        *_pooling(config),
        ("Vocabulary", _vocabulary(config)),
        ("Context", str(config["context"])),
        ("Activation", {"relu2": "squared ReLU", "silu": "SiLU"}[config["activation"]]),
        ("Norms", _norms(config)),
        ("RoPE", rope),
        ("Tensors", ", ".join(kinds)),
        ("Tokenizer", _tokenizer_line(found["tokenizer"])),
    ]
    table("", rows)
    table("\nMetadata", [(key, _text(value)) for key, value in found["metadata"].items()])
    if all_tensors:
        tensors = found["tensors"]
        table(
            "\nTensors", [(t["name"], t["dtype"], " x ".join(map(str, t["shape"])), size(t["nbytes"])) for t in tensors]
        )
    if found["findings"]:
        table("\nFindings", [(f["severity"], f["code"], f["message"]) for f in found["findings"]])


def _delta(config: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the properties that only models with gated delta nets have."""
    net = config["delta"]
    if net is None:
        return []
    attention = config["n_layers"] // net["interval"]
    heads = f"{net['value_heads']} value heads of {net['value_dim']}, {net['key_heads']} key heads of {net['key_dim']}"
    rows: list[tuple[str, ...]] = [
        ("Delta nets", f"{config['n_layers'] - attention} of the layers, {heads}, convolution over {net['conv']}")
    ]
    if config["hadamard"]:
        rows.append(
            ("Rotation", f"Hadamard, blocks of {config['hadamard']} columns, of the inputs of ternary matrices")
        )
    return rows


def _experts(config: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the properties that only models with a mixture of experts and sliding windows have."""
    rows: list[tuple[str, ...]] = []
    if experts := config["experts"]:
        rows.append(("Experts", f"{experts['count']} in each layer, of which a token uses {experts['used']}"))
    if windows := config["windows"]:
        windowed = sum(windows["layers"])
        text = f"the last {windows['size']} positions in {windowed} of the layers; the others have no positions (NoPE)"
        rows.append(("Windows", text))
    return rows


def _pooling(config: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the rule by which a model embeds texts, if it does."""
    pooling = config["pooling"]
    if pooling is None:
        return []
    rows = {"last": "the last row", "mean": "the mean of all rows", "cls": "the first row"}[pooling["mode"]]
    return [("Embeddings", rows + (", divided by its length" if pooling["normalize"] else ""))]


def _tokenizer_line(tokenizer: dict[str, Any]) -> str:
    """Return a line about the tokenizer, or about the reason why there is none."""
    if "error" in tokenizer:
        return f"does not load: {tokenizer['error']}"
    parts = [tokenizer["kind"], f"{tokenizer['tokens']} tokens"]
    if tokenizer["bos"] is not None:
        parts.append(
            f"begins with {tokenizer['bos']}" if tokenizer["add_bos"] else f"BOS {tokenizer['bos']}, not added"
        )
    if tokenizer["stop"]:
        parts.append("ends at " + " and ".join(f"{text} ({token})" for token, text in tokenizer["stop"].items()))
    error = tokenizer["chat_template_error"]
    parts.append(_TEMPLATES[tokenizer["chat_template"]] + (f" that does not parse ({error})" if error else ""))
    return ", ".join(parts)


def _text(value: Any) -> str:
    """Format a value of the metadata."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.7g}"  # most are float32
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _vocabulary(config: dict[str, Any]) -> str:
    rows, tokens = config["vocab"], config["vocab_tokens"]
    parts = [f"{tokens} tokens in {rows} rows" if 0 < tokens < rows else str(rows)]
    parts.append("tied head" if config["tied_head"] else "head of its own")
    return ", ".join([*parts, "ternary"] if config["ternary_tables"] else parts)


def _norms(config: dict[str, Any]) -> str:
    heads = "each query and key head" + (" after RoPE" if config["qk_norm_after_rope"] else "")
    names = {"sub_norms": "sub-norms", "qk_norm": heads, "projection_norms": "the input of each matrix"}
    parts = [text for key, text in names.items() if config[key]]
    return " and ".join(["before attention and FFN", *parts])


def _short(text: str) -> str:
    """Return one line of printable characters: the text comes from the file."""
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
