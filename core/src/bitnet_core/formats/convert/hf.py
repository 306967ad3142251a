"""Write a model as a Hugging Face folder with packed ternary weights (quantization_mode "offline")."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from bitnet_hal.rounding import ceil_div

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.convert.gguf import Step
from bitnet_core.formats.hf.names import stored
from bitnet_core.formats.hf.safetensors_writer import TensorHeader, write_safetensors
from bitnet_core.formats.names import matrices, tables, vectors
from bitnet_core.formats.rotation import reordered, row_order
from bitnet_core.formats.ternary import hf_packed
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import DenseWeight
from bitnet_core.tokenizer.export import folder_files
from bitnet_core.tokenizer.load import load_tokenizer

_CHUNK: Final = 1 << 22  # elements of a table written in one pass


def write_folder(source: ModelSource, folder: Path, step: Step) -> None:
    """Write config.json, model.safetensors and the tokenizer's files into a new folder.

    All floats are F32: transformers keeps the stored type of each tensor of a packed model and cannot multiply mixed
    types, and no narrower type holds an absmean scale exactly. Raises ModelError if such a folder cannot hold the
    model: several scales in a matrix, GGUF's frequency factors.
    """
    config = source.config
    if source.has("rope_freqs") and (source.vector("rope_freqs") != 1).any():
        raise ModelError(f"{source.path}: rope_freqs has no place in a Hugging Face folder; convert to GGUF instead")
    embedded = {name: source.dense(name) for name in tables(config)}
    declared = [TensorHeader(stored(name), "F32", (table.rows, table.columns)) for name, table in embedded.items()]
    declared += [TensorHeader(stored(name), "F32", (n,)) for name, n in vectors(config).items()]
    for name, (rows, columns) in matrices(config).items():
        declared.append(TensorHeader(stored(name), "U8", (ceil_div(rows, 4), columns)))
        declared.append(TensorHeader(stored(f"{name}.scale"), "F32", (1,)))
    files = folder_files(source.tokenizer, config.context)
    files["config.json"] = json.dumps(config_json(source), indent=2) + "\n"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    write_safetensors(folder / "model.safetensors", declared, _tensors(source, embedded, step))


def _tensors(
    source: ModelSource, embedded: dict[str, DenseWeight], step: Step
) -> Iterator[tuple[str, Iterable[npt.NDArray[np.generic]]]]:
    config = source.config
    for name, table in embedded.items():
        yield stored(name), _table(table)
        step(table.rows * table.columns)
    for name in vectors(config):
        yield stored(name), [source.vector(name).astype("<f4")]
    order = row_order(config, to_interleaved=False) if config.rope_interleaved else {}
    for name in matrices(config):
        weight = reordered(source.ternary(name), order.get(name.rpartition(".")[2]))
        if weight.scale_kind != "tensor":
            raise ModelError(
                f"{source.path}: {name} has a scale per {weight.scale_kind}, and a Hugging Face folder holds one per "
                f"matrix; convert to {'q2_0' if weight.block and weight.block < 256 else 'tq2_0'} instead"
            )
        yield stored(name), [hf_packed.encode_codes(weight.codes, weight.rows, weight.columns)]
        yield stored(f"{name}.scale"), [weight.scales.astype("<f4")]
        step(weight.rows * weight.columns)


def _table(table: DenseWeight) -> Iterator[npt.NDArray[np.generic]]:
    rows = max(_CHUNK // table.columns, 1)
    for at in range(0, table.rows, rows):
        yield dense.decode(table.data[at : at + rows], table.dtype, table.columns).astype("<f4")


def config_json(source: ModelSource) -> dict[str, Any]:
    """Return config.json: BitNetForCausalLM for a model with sub-norms, else LlamaForCausalLM with ternary layers."""
    config = source.config
    values: dict[str, Any] = {
        "architectures": ["BitNetForCausalLM" if config.sub_norms else "LlamaForCausalLM"],
        "model_type": "bitnet" if config.sub_norms else "llama",
        **common_fields(source),
        "torch_dtype": "float32",
        "quantization_config": {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "offline",
            "modules_to_not_convert": ["lm_head"],
        },
    }
    return values


def common_fields(source: ModelSource) -> dict[str, Any]:
    """Return the fields of config.json that every architecture has: sizes, rotation and special tokens."""
    config = source.config
    tokenizer = load_tokenizer(source.tokenizer)
    scaling = rope_scaling(config)
    return {
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": plain(config.norm_eps),
        "hidden_act": config.activation,
        "rope_theta": plain(config.rope_theta),
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        **({"rope_scaling": scaling} if scaling else {}),
    }


def rope_scaling(config: ModelConfig) -> dict[str, Any]:
    """Return the rope_scaling of a config.json; empty if there is none."""
    if config.rope_scaling == "none":
        return {}
    values: dict[str, Any] = {"rope_type": config.rope_scaling, "factor": plain(config.rope_factor)}
    if config.rope_scaling in ("yarn", "llama3"):
        values["original_max_position_embeddings"] = config.rope_original_context or config.context
    if config.rope_scaling == "yarn":
        values |= {"beta_fast": plain(config.rope_beta_fast), "beta_slow": plain(config.rope_beta_slow)}
    if config.rope_scaling == "llama3":
        values["low_freq_factor"] = config.rope_low_freq_factor
        values["high_freq_factor"] = config.rope_high_freq_factor
    return values


def plain(value: float) -> float:
    """Return the shortest number with the same f32 value: GGUF's 1e-5 is read as 9.999999747378752e-06."""
    return float(str(np.float32(value)))
