"""Names and shapes of a model's required and optional tensors."""

from __future__ import annotations

from bitnet_core.model.config import ModelConfig

SIGNS = "hadamard_signs."
PREDICTION = "nextn."
"""Beginning of the names of the tensors of a prediction head: those of an attention layer and its own."""
SUB_NORMS = ("attn_sub_norm", "ffn_sub_norm")
INPUT_NORM = "_norm_in"
"""End of the name of the norm of a matrix's input: attn_q has attn_q_norm_in."""
FIRST_INPUT_NORM = f"blk.0.attn_q{INPUT_NORM}"


def matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the (rows, columns) of every matrix of the layers."""
    return {f"blk.{i}.{name}": shape for i in range(config.n_layers) for name, shape in config.linears(i).items()}


def ternaries(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the (rows, columns) of all ternary tensors: the matrices, and the tables if they are ternary."""
    return matrices(config) | (tables(config) if config.ternary_tables else {})


def tables(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the (rows, columns) of the embedding and of the head, unless it is tied to the embedding."""
    shape = (config.vocab, config.hidden)
    return {"token_embd": shape} if config.tied_head else {"token_embd": shape, "output": shape}


def floats(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the (rows, columns) of the small dense matrices: the convolution and the gates of delta nets, and the
    routers of experts."""
    if config.experts:
        router = (config.experts.count, config.hidden)
        return {f"blk.{i}.ffn_gate_inp": router for i in range(config.n_layers)}
    if config.delta is None:
        return {}
    gate = (config.delta.value_heads, config.hidden)
    shapes = {"ssm_conv1d": (config.delta.channels, config.delta.conv), "ssm_alpha": gate, "ssm_beta": gate}
    return {f"blk.{i}.{name}": shapes[name] for i in range(config.n_layers) if config.is_delta(i) for name in shapes}


def prediction_matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the (rows, columns) of every matrix of a prediction head; embed_tokens and shared_head_head are
    optional."""
    attention = {
        "attn_q": (config.q_width, config.hidden),
        "attn_gate": (config.q_width, config.hidden),
        "attn_k": (config.kv_width, config.hidden),
        "attn_v": (config.kv_width, config.hidden),
        "attn_output": (config.hidden, config.q_width),
    }
    feed_forward = {
        "ffn_gate": (config.ffn, config.hidden),
        "ffn_up": (config.ffn, config.hidden),
        "ffn_down": (config.hidden, config.ffn),
    }
    own = {"eh_proj": (config.hidden, 2 * config.hidden)}
    return {PREDICTION + name: shape for name, shape in (own | attention | feed_forward).items()}


def prediction_vectors(config: ModelConfig) -> dict[str, int]:
    """Return the length of every norm weight of a prediction head; shared_head_norm is optional."""
    own = {"enorm": config.hidden, "hnorm": config.hidden}
    return {PREDICTION + name: size for name, size in (own | _attention(config)).items()}


def prediction_options(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a prediction head's optional tensors: without them it uses the model's."""
    table = (config.vocab, config.hidden)
    shapes = {"shared_head_norm": (config.hidden,), "embed_tokens": table, "shared_head_head": table}
    return {PREDICTION + name: shape for name, shape in shapes.items()}


def vectors(config: ModelConfig) -> dict[str, int]:
    """Return the length of every norm weight and other vector."""
    names = {
        f"blk.{i}.{name}": n
        for i in range(config.n_layers)
        for name, n in (_delta(config) if config.is_delta(i) else _attention(config)).items()
    }
    if config.projection_norms:
        names |= {name + INPUT_NORM: columns for name, (_, columns) in matrices(config).items()}
    return {**names, "output_norm": config.hidden}


def _attention(config: ModelConfig) -> dict[str, int]:
    layer = {"attn_norm": config.hidden, "ffn_norm": config.hidden}
    if config.sub_norms:
        layer |= {"attn_sub_norm": config.q_width, "ffn_sub_norm": config.ffn}
    if config.qk_norm:
        layer |= {"attn_q_norm": config.head_dim, "attn_k_norm": config.head_dim}
    return layer


def _delta(config: ModelConfig) -> dict[str, int]:
    assert config.delta is not None
    heads = config.delta.value_heads
    norms = {"attn_norm": config.hidden, "ffn_norm": config.hidden, "ssm_norm": config.delta.value_dim}
    return norms | {"ssm_a": heads, "ssm_dt": heads}


def signs_name(width: int) -> str:
    """Return the name of the signs that multiply rows of `width` columns before their Hadamard rotation."""
    return f"{SIGNS}{width}"
