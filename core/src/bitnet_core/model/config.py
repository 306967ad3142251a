"""What a model is, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["relu2", "silu"]
RopeScaling = Literal["none", "linear", "yarn", "llama3"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and rules of a BitNet transformer.

    Linear layers are named as in GGUF: attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down.
    """

    arch: str  # "bitnet-b1.58", "bitnet-25", "bitnet" or "llama"
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
    rope_low_freq_factor: float = 1.0  # llama3 scaling only
    rope_high_freq_factor: float = 4.0  # llama3 scaling only

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
