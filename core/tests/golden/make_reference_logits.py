"""Makes reference_logits.npz with torch and transformers: python make_reference_logits.py

Logits f32[130, 64] of every model of tiny_models.CONFIGS after each token of PROMPT, computed by transformers in
float32 with its own classes for quantised linear layers, and the seed of the weights.

The seed matters. Activations are rounded to int8, and where one falls on a rounding boundary the order of an f32 sum
decides between two integers, which moves the logits by far more than f32 rounding does. So the seed is the one of some
dozens whose activations stay farthest from such boundaries; any engine can then agree to 1e-4.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # plain eager arithmetic

import numpy as np
import torch
from tiny_models import CONFIGS, PROMPT, TinyModel
from transformers import BitNetConfig, BitNetForCausalLM, BitNetQuantConfig, LlamaConfig, LlamaForCausalLM
from transformers.integrations import bitnet

SEEDS = 60
LINEARS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
SUB_NORMS = {"attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"}
QUANTIZATION = {
    "offline": BitNetQuantConfig(linear_class="autobitlinear", quantization_mode="offline"),
    "online": BitNetQuantConfig(linear_class="autobitlinear", quantization_mode="online"),
    "silu": BitNetQuantConfig(linear_class="bitlinear", quantization_mode="offline"),
    "llama": BitNetQuantConfig(linear_class="bitlinear", quantization_mode="offline"),
}

margins: list[float] = []


def watch(scaled: torch.Tensor) -> None:
    """Note how near values come to a rounding boundary, in units of their own f32 spacing."""
    distance = (scaled.double() - scaled.double().floor() - 0.5).abs()
    margins.append(float((distance / scaled.abs().clamp(min=8)).min()))


def watched_act_quant(ctx: object, activation: torch.Tensor) -> torch.Tensor:
    """ActQuant.forward as transformers has it, with a look at the values before rounding."""
    scale = 127 / activation.float().abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
    watch(activation.float() * scale)
    return original_act_quant(ctx, activation)


def watched_activation_quant(self: bitnet.BitLinear, x: torch.Tensor, num_bits: int = 8) -> object:
    """BitLinear.activation_quant, likewise."""
    watch(x * (127 / x.abs().max(dim=-1, keepdim=True).values.clamp(min=1e-5)))
    return original_activation_quant(self, x, num_bits)


original_act_quant = bitnet.ActQuant.forward
original_activation_quant = bitnet.BitLinear.activation_quant
bitnet.ActQuant.forward = staticmethod(watched_act_quant)
bitnet.BitLinear.activation_quant = watched_activation_quant


def build(style: str) -> torch.nn.Module:
    """The transformers model of a style, its weights not yet set."""
    ours = CONFIGS[style]
    shape = {
        "vocab_size": ours.vocab,
        "hidden_size": ours.hidden,
        "intermediate_size": ours.ffn,
        "num_hidden_layers": ours.n_layers,
        "num_attention_heads": ours.n_heads,
        "num_key_value_heads": ours.n_kv_heads,
        "max_position_embeddings": ours.context,
        "rms_norm_eps": ours.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": ours.rope_theta},
        "hidden_act": ours.activation,
        "tie_word_embeddings": ours.tied_head,
        "attn_implementation": "eager",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if ours.sub_norms:
        model: torch.nn.Module = BitNetForCausalLM(BitNetConfig(**shape))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape))
    model = model.float().eval()
    return bitnet.replace_with_bitnet_linear(model, ["lm_head"], QUANTIZATION[style])


def fill(model: torch.nn.Module, style: str, seed: int) -> None:
    """Set every weight from the seed."""
    tiny = TinyModel(CONFIGS[style], seed)
    config = tiny.config

    def norm(name: str, module: str, size: int) -> None:
        model.get_submodule(module).weight.data = torch.from_numpy(tiny.norm(name, size))

    for layer in range(config.n_layers):
        prefix, module = f"blk.{layer}.", f"model.layers.{layer}."
        for name, target in NORMS.items():
            norm(prefix + name, module + target, config.hidden)
        if config.sub_norms:
            norm(prefix + "attn_sub_norm", module + SUB_NORMS["attn_sub_norm"], config.q_width)
            norm(prefix + "ffn_sub_norm", module + SUB_NORMS["ffn_sub_norm"], config.ffn)
        for name, target in LINEARS.items():
            linear = model.get_submodule(module + target)
            if style == "online":
                linear.weight.data = torch.from_numpy(tiny.master(prefix + name))
                continue
            signs, scale = tiny.signs(prefix + name)
            values = torch.from_numpy(signs.astype(np.float32))
            if isinstance(linear, bitnet.AutoBitLinear):  # multiplies by its scale
                linear.weight.data, linear.weight_scale = values, torch.tensor([scale])
            else:  # divides by it
                linear.weight, linear.dtype = bitnet.pack_weights(values), torch.float32
                linear.weight_scale = torch.tensor([np.float32(1) / scale])
    norm("output_norm", "model.norm", config.hidden)
    table = torch.from_numpy(tiny.table("token_embd"))
    model.get_submodule("model.embed_tokens").weight.data = table
    head = table if config.tied_head else torch.from_numpy(tiny.table("output"))
    model.get_submodule("lm_head").weight.data = head


def main() -> None:
    out: dict[str, np.ndarray] = {}
    for style in CONFIGS:
        model, best = build(style), (-1.0, 0, np.empty(0))
        for seed in range(SEEDS):
            fill(model, style, seed)
            margins.clear()
            with torch.no_grad():
                logits = model(torch.tensor([PROMPT]), use_cache=False).logits[0].numpy()
            best = max(best, (min(margins), seed, logits.copy()), key=lambda found: found[0])
        margin, seed, logits = best
        sys.stderr.write(
            f"{style}: seed {seed}, nearest rounding boundary {margin:.1e}, largest {abs(logits).max():.1f}\n"
        )
        out[f"{style}.logits"], out[f"{style}.seed"] = logits.astype(np.float32), np.int64(seed)
    np.savez(Path(__file__).with_name("reference_logits.npz"), **out)


if __name__ == "__main__":
    main()
