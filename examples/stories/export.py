"""Write a trained checkpoint as a GGUF file and as a Hugging Face folder; both hold the same numbers.

    python export.py --checkpoint build/ternary.pt --tokenizer build/tokenizer.json \\
        --gguf ../../core/src/bitnet_core/data/stories.gguf --folder build/hf

The embedding is rounded to f16 and each scale to bf16, so that every container can hold them exactly.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.ternary import codes, hf_packed, i2_s
from bitnet_core.model.weights import TernaryWeight
from chat import TEMPLATE
from documents import special_id
from model import Shape, quantise_weight
from safetensors.torch import save_file
from tokenizer import BOS, EOS, EOT, SPECIALS
from tokenizers import Tokenizer
from torch import Tensor

GGUF_NAMES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
HF_LINEARS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HF_NORMS = {
    "attn_norm": "input_layernorm",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
}


class Weights(NamedTuple):
    """The exported weights, by GGUF name without ".weight"."""

    embedding: npt.NDArray[np.float16]
    norms: dict[str, npt.NDArray[np.float32]]
    linears: dict[str, TernaryWeight]


def read(checkpoint: Path) -> Weights:
    """Quantise the master weights of a checkpoint."""
    state: dict[str, Tensor] = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    norms, linears = {}, {}
    for key, tensor in state.items():
        parts = key.split(".")
        if parts[0] == "blocks" and parts[-1] == "weight":
            values, scale = quantise_weight(tensor)
            rows, columns = values.shape
            packed = codes.pack((values + 1).to(torch.uint8).numpy())
            scales = scale.reshape(1).bfloat16().float().numpy()
            linears[f"blk.{parts[1]}.{GGUF_NAMES[parts[2]]}"] = TernaryWeight(rows, columns, packed, scales)
        elif parts[0] == "blocks":
            norms[f"blk.{parts[1]}.{parts[2]}"] = tensor.numpy()
    norms["output_norm"] = state["output_norm"].numpy()
    return Weights(state["embedding"].half().numpy(), norms, linears)


def write_gguf(path: Path, weights: Weights, tokenizer: Tokenizer) -> None:
    shape, arch = Shape(), "bitnet-b1.58"
    with GGUFWriter(path) as writer:
        for key, text in (("architecture", arch), ("name", "stories"), ("license", "MIT")):
            writer.metadata(f"general.{key}", text)
        writer.metadata("general.file_type", 40)  # I2_S
        writer.metadata("general.quantization_version", 2)
        for key, value in {
            "vocab_size": shape.vocab,
            "context_length": shape.context,
            "embedding_length": shape.hidden,
            "block_count": shape.layers,
            "feed_forward_length": shape.ffn,
            "attention.head_count": shape.heads,
            "attention.head_count_kv": shape.kv_heads,
            "attention.layer_norm_rms_epsilon": shape.eps,
            "rope.dimension_count": shape.head_dim,
            "rope.freq_base": shape.rope_theta,
        }.items():
            writer.metadata(f"{arch}.{key}", value)
        _write_tokenizer(writer, tokenizer)
        tensors: dict[str, tuple[tuple[int, ...], str, npt.NDArray[np.generic]]] = {
            "token_embd": (weights.embedding.shape, "F16", weights.embedding)
        }
        tensors |= {name: (norm.shape, "F32", norm) for name, norm in weights.norms.items()}
        tensors |= {name: ((w.rows, w.columns), "I2_S", i2_s.encode(w)) for name, w in weights.linears.items()}
        for name, (dims, dtype, data) in tensors.items():
            writer.tensor(f"{name}.weight", dims, dtype, data.nbytes)
        for name, (_, _, data) in tensors.items():
            writer.write(f"{name}.weight", [data])


def _write_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [str(tokenizer.id_to_token(index)) for index in range(tokenizer.get_vocab_size())]
    control = np.array([3 if token in SPECIALS else 1 for token in tokens], np.int32)
    writer.metadata("tokenizer.ggml.model", "gpt2")
    writer.metadata("tokenizer.ggml.pre", "llama-bpe")
    writer.metadata("tokenizer.ggml.tokens", tokens)
    writer.metadata("tokenizer.ggml.token_type", control)
    writer.metadata("tokenizer.ggml.merges", [" ".join(pair) for pair in model["merges"]])
    for key, token in (("bos", BOS), ("eos", EOS), ("eot", EOT), ("padding", EOS)):
        writer.metadata(f"tokenizer.ggml.{key}_token_id", special_id(tokenizer, token))
    writer.metadata("tokenizer.ggml.add_bos_token", True)
    writer.metadata("tokenizer.chat_template", TEMPLATE)


def write_folder(folder: Path, weights: Weights, tokenizer: Tokenizer) -> None:
    """Write model.safetensors with packed weights, config.json, generation_config.json and the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"model.embed_tokens.weight": torch.from_numpy(weights.embedding).float()}
    for name, norm in weights.norms.items():
        tensors[_hf_name(name, HF_NORMS)] = torch.from_numpy(norm)
    for name, linear in weights.linears.items():
        packed = hf_packed.encode_codes(linear.codes, linear.rows, linear.columns)
        tensors[_hf_name(name, HF_LINEARS)] = torch.from_numpy(packed)
        tensors[_hf_name(name, HF_LINEARS) + "_scale"] = torch.from_numpy(linear.scales).bfloat16()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": EOS}
    ids = {f"{key}_id": special_id(tokenizer, token) for key, token in special.items()}
    files = {
        "config.json": _config() | ids,
        "generation_config.json": ids | {"eos_token_id": [special_id(tokenizer, EOS), special_id(tokenizer, EOT)]},
        "tokenizer_config.json": special
        | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": TEMPLATE,
            "model_max_length": Shape().context,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def _hf_name(name: str, names: dict[str, str]) -> str:
    if name == "output_norm":
        return "model.norm.weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{names[part]}.weight"


def _config() -> dict[str, object]:
    shape = Shape()
    return {
        "architectures": ["BitNetForCausalLM"],
        "model_type": "bitnet",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "relu2",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "quantization_config": {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "offline",
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="folder for the Hugging Face files")
    arguments = parser.parse_args()
    weights, tokenizer = read(arguments.checkpoint), Tokenizer.from_file(str(arguments.tokenizer))
    write_gguf(arguments.gguf, weights, tokenizer)
    write_folder(arguments.folder, weights, tokenizer)


if __name__ == "__main__":
    main()
