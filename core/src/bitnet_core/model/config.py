"""The configuration of a model, independent of its file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

Activation = Literal["relu2", "silu"]
RopeScaling = Literal["none", "linear", "yarn", "llama3", "longrope"]


PoolingMode = Literal["last", "mean", "cls"]


@dataclass(frozen=True, slots=True)
class Pooling:
    """The rule by which an embedding model reduces the hidden rows of a text to one vector.

    mode: the last row, the mean of all, or the first. normalize: True to divide the vector by its length.
    """

    mode: PoolingMode
    normalize: bool = True


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """The shape of gated delta nets (Yang et al. 2024, arXiv 2412.06464), which replace attention in Qwen3.5.

    Every `interval`-th layer is attention, with an output gate. Value head h reads key head h % key_heads.
    """

    interval: int
    conv: int  # taps of the causal convolution
    key_heads: int
    value_heads: int  # a multiple of key_heads
    key_dim: int  # elements of a key (and a query) head
    value_dim: int
    regrouped: bool = False  # ssm_out takes value head r * key_heads + g as number g * (value_heads / key_heads) + r

    @property
    def key_width(self) -> int:
        """Columns of the queries, and of the keys."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Columns of the values."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Columns of [q | k | v], which the convolution runs over."""
        return 2 * self.key_width + self.value_width

    @property
    def state_sizes(self) -> tuple[int, int]:
        """f32 values of a layer's state for one request: the convolution's last inputs, and the heads' states."""
        return (self.conv - 1) * self.channels, self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the feed-forward part (Shazeer et al. 2017, arXiv 1701.06538).

    A row uses the `used` experts with the largest logits of the router; the softmax of these logits weighs their
    results.
    """

    count: int
    used: int  # experts of each row
    limit: float  # gate is clamped to at most limit, up to -limit..limit


@dataclass(frozen=True, slots=True)
class Windows:
    """Sliding windows (Beltagy et al. 2020, arXiv 2004.05150) in some layers.

    layers: for each layer, True if a row sees the last `size` positions, its own included, and False if it sees all
    positions. The latter layers do not rotate queries and keys (NoPE, Kazemnejad et al. 2023, arXiv 2305.19466).
    """

    size: int
    layers: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape and rules of a BitNet transformer.

    Linear layers are named as in GGUF: attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down. A model with
    delta nets has attn_gate in every layer, and attn_qkv and ssm_out in the layers without attention. A mixture of
    experts has ffn_gate_exps, ffn_up_exps and ffn_down_exps, which hold the matrices of all experts, stacked by rows;
    `ffn` is then the width of one expert.
    """

    arch: str  # a key of families.FAMILIES
    name: str
    n_layers: int
    hidden: int
    ffn: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    context: int  # longest sequence the model was trained for, in tokens
    norm_eps: float
    rope_theta: float
    activation: Activation
    sub_norms: bool  # attn_sub_norm before attn_output and ffn_sub_norm before ffn_down
    tied_head: bool  # logits come from the embedding table
    rope_interleaved: bool = False  # pairs (2j, 2j+1) instead of (j, j + head_dim/2)
    rope_scaling: RopeScaling = "none"
    rope_factor: float = 1.0
    rope_original_context: int = 0
    rope_beta_fast: float = (
        32.0  # yarn only: frequencies with more rotations than this within the original context are kept
    )
    rope_beta_slow: float = 1.0  # yarn only: those with fewer than this are interpolated fully
    rope_low_freq_factor: float = 1.0  # llama3 scaling only
    rope_high_freq_factor: float = 4.0  # llama3 scaling only
    qk_norm: bool = False  # RMSNorm of each query and key head (attn_q_norm, attn_k_norm) before the rotation
    qk_norm_after_rope: bool = False  # that norm is after the rotation
    projection_norms: bool = False  # RMSNorm of the input of each matrix (attn_q_norm_in and so on)
    pooling: Pooling | None = None  # set for a model that embeds texts instead of generating
    activation_group_size: int = 0  # columns that share an activation scale; 0 = one scale a row
    ternary_tables: bool = False  # token_embd and output are ternary (ModelSource.ternary), not dense
    vocab_tokens: int = 0  # number of existing tokens: higher ids are never sampled; 0 = all of vocab
    rope_dim: int = 0  # leading elements of a head that are rotated, as pairs (j, j + rope_dim/2); 0 = all of them
    delta: DeltaNet | None = None
    prediction_head: bool = False  # the file has a multi-token prediction head (formats.names.prediction_matrices)
    experts: Experts | None = None
    windows: Windows | None = None
    hadamard: int = 0  # block size of the Hadamard rotation of ternary matrices' inputs; 0 = none

    @property
    def tokens(self) -> int:
        """The number of ids that may be sampled: 0..tokens - 1."""
        return self.vocab_tokens or self.vocab

    @property
    def q_width(self) -> int:
        """Columns of the query projection's output."""
        return self.n_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key (and of the value) projection's output."""
        return self.n_kv_heads * self.head_dim

    @property
    def rotary_pairs(self) -> int:
        """Pairs of a head that have a frequency."""
        return (self.rope_dim or self.head_dim) // 2

    @property
    def layers_before(self) -> int:
        """The number of layers that run before these, on other devices."""
        return 0

    @property
    def layers_after(self) -> int:
        """The number of layers that run after these, on other devices."""
        return 0

    def is_delta(self, layer: int) -> bool:
        """Return whether a layer is a delta net."""
        return self.delta is not None and (self.layers_before + layer + 1) % self.delta.interval != 0

    @property
    def attention_layers(self) -> int:
        """The number of layers with keys and values in the cache."""
        return sum(not self.is_delta(layer) for layer in range(self.n_layers))

    @property
    def cached_layers(self) -> int:
        """The number of layers with keys and values in the cache, the prediction head's included."""
        return self.attention_layers + self.prediction_head

    @property
    def state_bytes(self) -> int:
        """Bytes of the delta nets' state for one request, independent of its length."""
        return 4 * (self.n_layers - self.attention_layers) * sum(self.delta.state_sizes) if self.delta else 0

    def linears(self, layer: int) -> dict[str, tuple[int, int]]:
        """Return (rows N, columns K) of every ternary matrix of one layer: y[N] = W[N, K] x[K]."""
        count = self.experts.count if self.experts else 1
        kind = "_exps" if self.experts else ""
        return self._mixer(layer) | {
            f"ffn_gate{kind}": (count * self.ffn, self.hidden),
            f"ffn_up{kind}": (count * self.ffn, self.hidden),
            f"ffn_down{kind}": (count * self.hidden, self.ffn),
        }

    def _mixer(self, layer: int) -> dict[str, tuple[int, int]]:
        """Return the matrices of attention or of the delta net."""
        if self.delta and self.is_delta(layer):
            return {
                "attn_qkv": (self.delta.channels, self.hidden),
                "attn_gate": (self.delta.value_width, self.hidden),
                "ssm_out": (self.hidden, self.delta.value_width),
            }
        attention = {
            "attn_q": (self.q_width, self.hidden),
            "attn_k": (self.kv_width, self.hidden),
            "attn_v": (self.kv_width, self.hidden),
            "attn_output": (self.hidden, self.q_width),
        }
        return attention | ({"attn_gate": (self.q_width, self.hidden)} if self.delta else {})

    def part(self, first: int, count: int) -> ModelConfig:
        """Return the configuration of `count` layers from `first` on, for one of several devices; without the
        prediction head."""
        if count == self.n_layers:
            return self
        values = {field.name: getattr(self, field.name) for field in fields(ModelConfig)}
        own: dict[str, Any] = {"n_layers": count, "prediction_head": False}
        if self.windows:
            own["windows"] = Windows(self.windows.size, self.windows.layers[first : first + count])
        return PartConfig(**values | own, before=first, after=self.n_layers - first - count)


@dataclass(frozen=True, slots=True)
class PartConfig(ModelConfig):
    """The configuration of contiguous layers of a model. The embedding is with the first layer, the head with the
    last. before, after: the numbers of layers on other devices."""

    before: int = 0
    after: int = 0

    @property
    def layers_before(self) -> int:
        """The number of layers that run before these, on other devices."""
        return self.before

    @property
    def layers_after(self) -> int:
        """The number of layers that run after these, on other devices."""
        return self.after
