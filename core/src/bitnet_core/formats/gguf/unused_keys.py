"""Keys of an architecture that no reader uses: they are rejected if they change the computation, and reported if
unknown.

Names and neutral values: llama.cpp, src/llama-arch.cpp and src/llama-hparams.h.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bitnet_core.errors import ModelError
from bitnet_core.formats.keys import MetadataReader, short
from bitnet_core.model.source import Finding

_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.temperature_scale": (0, 1),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "logit_scale": (0, 1),
    "use_parallel_residual": (False,),
    "swin_norm": (False,),
}
"""Keys that change the computation, with the values that disable them."""

_USED: Final = frozenset({
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "hidden_activation"),
    *("nextn_predict_layers", "pooling_type"),
})  # fmt: skip
_WITHOUT_EFFECT: Final = frozenset({
    *("tensor_data_layout", "attention.layer_norm_epsilon", "leading_dense_block_count", "rope.scale_linear"),
    *("rope.type", "n_deepstack_layers", "attention.group_norm_groups", "interleave_moe_layer_step"),
})  # fmt: skip
"""Keys about features that these architectures do not have, or that only repeat what the architecture implies."""
_MULTIPLIERS: Final = frozenset({"embedding_scale", "residual_scale", "logit_scale"})
_GROUPS: Final = ("rope.scaling.", "vision.", "mtp.")


def check_unused(path: Path, keys: MetadataReader, arch: str, own: frozenset[str] | None = None) -> list[Finding]:
    """Return a warning about the unknown keys of an architecture.

    own: all keys of an architecture in which an unknown one may change the model. Raises ModelError for such a key, and
    for one that is known to change the computation.
    """
    names = keys.names_below("")
    if arch == "minicpm":
        names -= _MULTIPLIERS
    for name in sorted(names & _NEUTRAL.keys() - (own or frozenset())):
        if not keys.is_one_of(name, _NEUTRAL[name]):
            raise ModelError(f"{path}: the key {short(f'{arch}.{name}')} is not supported: it changes the model")
    unknown = sorted(name for name in names - _NEUTRAL.keys() - _USED - _WITHOUT_EFFECT if not name.startswith(_GROUPS))
    if own is not None:
        unknown = sorted(name for name in names - _NEUTRAL.keys() - own if not name.startswith(("vision.", "mtp.")))
        if unknown:
            key = short(f"{arch}.{unknown[0]}")
            raise ModelError(f"{path}: the key {key} is not supported, and may change the model")
    if not unknown:
        return []
    more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    text = f"the key {short(f'{arch}.{unknown[0]}')}{more} is not known and not used; the model may need it"
    return [Finding("warning", "unknown-key", text)]
