"""The model families, one row per GGUF architecture: a Llama-like family is a row here and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from bitnet_core.model.config import Activation

ACTIVATION_GROUP: Final = 32
"""Columns that share an activation scale in models that were not trained with one scale a row."""


class Sampling(NamedTuple):
    """Sampling defaults of a family's authors, for files that state none. origin: their name, for people."""

    temperature: float
    top_k: int
    top_p: float
    origin: str


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """How a family is stored in a Hugging Face folder: unpacked ternary floats, or MLX's packs.

    model_type, architecture: of config.json. head_dim, context: defaults of transformers' configuration class.
    """

    model_type: str
    architecture: str
    head_dim: int
    context: int


@dataclass(frozen=True, slots=True)
class Family:
    """Rules that the files of an architecture do not spell out.

    activation: None if the file or the shape decides. tied_head: an output matrix in the file is a copy of the
    embedding. rope_interleaved: RoPE rotates pairs (2j, 2j + 1). partial_rope: a part of a head may be rotated.
    longrope: this RoPE scaling is supported. qk_norm: RMSNorm of query and key heads. grouped: groups of
    ACTIVATION_GROUP columns share an activation scale. folder: its form in Hugging Face folders, if it has one of its
    own. keeps_arch: a converted GGUF file keeps the architecture. not_written: what such models are called, if they
    cannot be converted.
    """

    activation: Activation | None = None
    tied_head: bool = False
    rope_interleaved: bool = False
    partial_rope: bool = False
    longrope: bool = False
    qk_norm: bool = False
    grouped: bool = False
    sampling: Sampling | None = None
    folder: HuggingFace | None = None
    keeps_arch: bool = False
    not_written: str = ""

    @property
    def activation_group_size(self) -> int:
        """As in ModelConfig."""
        return ACTIVATION_GROUP if self.grouped else 0


FAMILIES: Final[dict[str, Family]] = {
    "bitnet-b1.58": Family("relu2"),
    # the first 2B-4T release carries a copy of the embedding as output.weight, which its own program ignores
    "bitnet-25": Family("relu2", tied_head=True),
    "bitnet": Family(),
    "llama": Family("silu", rope_interleaved=True, keeps_arch=True),
    "minicpm": Family("silu", rope_interleaved=True, longrope=True, grouped=True, not_written="of the MiniCPM kind"),
    "qwen3": Family(
        "silu",
        qk_norm=True,
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
}
"""By general.architecture of GGUF files."""

UNSUPPORTED: Final = {
    "qwen35moe": "a mixture of experts, which is not computed yet",
    "qwen3moe": "a mixture of experts, which is not computed yet",
    "maple": "a mixture of experts with sliding-window attention, which is not computed yet",
}
"""Architectures with ternary models that are not run, and why."""


def folder_families() -> dict[str, str]:
    """Architecture of each model_type that has a row with a folder of its own."""
    return {family.folder.model_type: arch for arch, family in FAMILIES.items() if family.folder}
