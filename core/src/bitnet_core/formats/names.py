"""Names and shapes of every tensor that a model must or may have."""

from __future__ import annotations

from bitnet_core.model.config import ModelConfig

LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
SUB_NORMS = ("attn_sub_norm", "ffn_sub_norm")


def matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(rows, columns) of every matrix of the layers."""
    shapes = config.linears()
    return {f"blk.{i}.{name}": shapes[name] for i in range(config.n_layers) for name in LINEARS}


def ternaries(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(rows, columns) of everything that is stored as ternary: the matrices, and the tables where they are."""
    return matrices(config) | (tables(config) if config.ternary_tables else {})


def tables(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(rows, columns) of the embedding and, if it is not tied to it, the head."""
    shape = (config.vocab, config.hidden)
    return {"token_embd": shape} if config.tied_head else {"token_embd": shape, "output": shape}


def vectors(config: ModelConfig) -> dict[str, int]:
    """Length of every norm weight."""
    layer = {"attn_norm": config.hidden, "ffn_norm": config.hidden}
    if config.sub_norms:
        layer |= {"attn_sub_norm": config.q_width, "ffn_sub_norm": config.ffn}
    if config.qk_norm:
        layer |= {"attn_q_norm": config.head_dim, "attn_k_norm": config.head_dim}
    names = {f"blk.{i}.{name}": n for i in range(config.n_layers) for name, n in layer.items()}
    return {**names, "output_norm": config.hidden}
