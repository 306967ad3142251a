"""What a model is, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["relu2", "silu"]
RopeScaling = Literal["none", "linear", "yarn", "llama3", "longrope"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and rules of a BitNet transformer.

    Linear layers are named as in GGUF: attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down.
    """

    arch: str  # "bitnet-b1.58", "bitnet-25", "bitnet", "llama", "minicpm" or "qwen3"
    name: str
    n_layers: int
    hidden: int
    ffn: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    context: int  # longest sequence the model was made for, in tokens
    norm_eps: float
    rope_theta: float
    activation: Activation
    sub_norms: bool  # attn_sub_norm before attn_output and ffn_sub_norm before ffn_down
    tied_head: bool  # logits come from the embedding table
    rope_interleaved: bool = False  # pairs (2j, 2j+1) instead of (j, j + head_dim/2)
    rope_scaling: RopeScaling = "none"
    rope_factor: float = 1.0
    rope_original_context: int = 0
    rope_beta_fast: float = 32.0  # yarn only: rotations within the original context above which nothing is interpolated
    rope_beta_slow: float = 1.0  # yarn only: and below which all is
    rope_low_freq_factor: float = 1.0  # llama3 scaling only
    rope_high_freq_factor: float = 4.0  # llama3 scaling only
    qk_norm: bool = False  # RMSNorm of each query and key head (attn_q_norm, attn_k_norm) before the rotation
    activation_block: int = 0  # columns that share an activation scale; 0 = one scale a row
    ternary_tables: bool = False  # token_embd and output are ternary (ModelSource.ternary), not dense
    vocab_tokens: int = 0  # tokens that exist: ids from here on are never chosen; 0 = all of vocab

    @property
    def tokens(self) -> int:
        """Ids that may be chosen are 0..tokens - 1."""
        return self.vocab_tokens or self.vocab

    @property
    def q_width(self) -> int:
        """Columns of the query projection's output."""
        return self.n_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key (and of the value) projection's output."""
        return self.n_kv_heads * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """(rows N, columns K) of every ternary matrix of one layer: y[N] = W[N, K] x[K]."""
        return {
            "attn_q": (self.q_width, self.hidden),
            "attn_k": (self.kv_width, self.hidden),
            "attn_v": (self.kv_width, self.hidden),
            "attn_output": (self.hidden, self.q_width),
            "ffn_gate": (self.ffn, self.hidden),
            "ffn_up": (self.ffn, self.hidden),
            "ffn_down": (self.hidden, self.ffn),
        }
