"""The model families, one row per GGUF architecture. A Llama-like family needs a row here and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from bitnet_core.model.config import Activation

ACTIVATION_GROUP: Final = 32
"""Columns that share an activation scale in models that were not trained with one scale per row."""


class Sampling(NamedTuple):
    """Sampling defaults of a family's authors, for files that state none. origin: name of their source."""

    temperature: float
    top_k: int
    top_p: float
    origin: str


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """A family's form in a Hugging Face folder: unpacked ternary floats, or MLX's packs.

    model_type, architecture: of config.json. head_dim, context: defaults of transformers' configuration class.
    """

    model_type: str
    architecture: str
    head_dim: int
    context: int


@dataclass(frozen=True, slots=True)
class Family:
    """The rules of an architecture that its files do not state.

    activation: None if the file or the shape decides. tied_head: an output matrix in the file is a copy of the
    embedding. rope_interleaved: RoPE rotates pairs (2j, 2j + 1). partial_rope: only a part of a head may be rotated.
    longrope: this RoPE scaling is supported. qk_norm: RMSNorm of query and key heads. qk_norm_after_rope: of the
    rotated ones. projection_norms: each matrix may have a norm of its input (BitNet-embedding). grouped: groups of
    ACTIVATION_GROUP columns share an activation scale. folder: its form in Hugging Face folders, if it differs from
    BitNet's. keeps_arch: a converted GGUF file keeps the architecture. not_written: a description of the models, if
    they cannot be converted.
    """

    activation: Activation | None = None
    tied_head: bool = False
    rope_interleaved: bool = False
    partial_rope: bool = False
    longrope: bool = False
    qk_norm: bool = False
    qk_norm_after_rope: bool = False
    projection_norms: bool = False
    grouped: bool = False
    sampling: Sampling | None = None
    folder: HuggingFace | None = None
    keeps_arch: bool = False
    not_written: str = ""

    @property
    def activation_group_size(self) -> int:
        """Columns that share an activation scale; 0 = one scale per row."""
        return ACTIVATION_GROUP if self.grouped else 0


FAMILIES: Final[dict[str, Family]] = {
    "bitnet-b1.58": Family("relu2"),
    # the first 2B-4T release has a copy of the embedding as output.weight, which its own program ignores
    "bitnet-25": Family("relu2", tied_head=True),
    "bitnet": Family(),
    "llama": Family("silu", rope_interleaved=True, keeps_arch=True),
    "minicpm": Family("silu", rope_interleaved=True, longrope=True, grouped=True, not_written="of the MiniCPM kind"),
    "qwen3": Family(
        "silu",
        qk_norm=True,
        projection_norms=True,
        grouped=True,
        sampling=Sampling(0.6, 20, 0.95, "the Qwen3 family"),  # generation_config.json of Qwen's own models
        folder=HuggingFace("qwen3", "Qwen3ForCausalLM", head_dim=128, context=32768),
        keeps_arch=True,
    ),
    "qwen35": Family(
        "silu",
        partial_rope=True,
        qk_norm=True,
        grouped=True,
        sampling=Sampling(0.7, 20, 0.95, "Bonsai 27B"),  # PrismML's scripts
        not_written="with gated delta nets (architecture qwen35)",
    ),
    "hunyuan-dense": Family(
        "silu",
        qk_norm=True,
        qk_norm_after_rope=True,
        grouped=True,
        sampling=Sampling(0.7, 20, 0.6, "Hy-MT"),  # Tencent's page of Hy-MT
        keeps_arch=True,
    ),
    "maple": Family(
        "silu",
        partial_rope=True,
        qk_norm=True,
        grouped=True,
        not_written="with a mixture of experts (architecture maple)",
    ),
}
"""Families by general.architecture of GGUF files."""

UNSUPPORTED: Final = {
    "clip": "a vision tower (mmproj), and images are not supported; use the GGUF file of the model itself",
    "hunyuan-moe": "a mixture of experts, which is not supported yet",
    "hy-v3": "a mixture of experts, which is not supported yet",
    "hy-v4": "a mixture of experts with latent attention, which is not supported yet",
    "qwen35moe": "a mixture of experts, which is not supported yet",
    "qwen3moe": "a mixture of experts, which is not supported yet",
    "gemma3": "GELU, norms behind attention and FFN, and sliding windows; of bitnet-embedding, the 0.6B model runs",
}
"""Architectures with ternary models that are not supported, and the reason."""


def folder_families() -> dict[str, str]:
    """Return the architecture of each model_type whose family has a `folder`."""
    return {family.folder.model_type: arch for arch, family in FAMILIES.items() if family.folder}
