"""Launches of a recording that one dispatch can do: rotation, cache and attention of one row.

Every buffer is written as the single launches would: what is put together is still there for whoever reads it.
(The catalogue's rope_attention would not do: it has to take heads of any size.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bitnet_core.kernels.catalogue import ATTENTION
from bitnet_core.kernels.sizes import product, query_key_value
from bitnet_core.kernels.spec import Binding

from bitnet_vulkan.instance import PhysicalDevice
from bitnet_vulkan.layer import LAYER, Compile, Launch, apart, decoder_layer, same
from bitnet_vulkan.pipelines import Source

_ROPE_ATTENTION = replace(
    ATTENTION,
    name="attention.rope",
    bindings=(
        replace(ATTENTION.bindings[0], access="w"),
        *(replace(binding, access="rw") for binding in ATTENTION.bindings[1:3]),
        *ATTENTION.bindings[3:],
        Binding("qkv", "f32", "r", "as rope_store_kv has it", query_key_value),
        Binding("rope", "f32", "r", "as rope_store_kv has it", product("head_dim")),
    ),
)


def fuse(launches: Sequence[Launch], compile_kernel: Compile, physical: PhysicalDevice) -> list[Launch]:
    """The launches to record in place of `launches`."""
    fused: list[Launch] = []
    at = 0
    while at < len(launches):
        first = launches[at]
        if joined := decoder_layer(launches[at:], compile_kernel, physical):
            fused.append(joined)
            at += LAYER
        elif at + 1 < len(launches) and _rope_then_attention(first, launches[at + 1]):
            fused.append(_rope_attention(first, launches[at + 1], compile_kernel))
            at += 2
        else:
            fused.append(first)
            at += 1
    return fused


def _rope_then_attention(rope: Launch, attention: Launch) -> bool:
    if rope.kernel.spec.name != "rope_store_kv" or attention.kernel.spec.name != "attention":
        return False
    of_rope = rope.values
    of_attention = attention.values
    return (
        of_rope["rows"] == 1
        and attention.kernel.source is Source.SPLIT
        and all(of_attention[name] == value for name, value in of_rope.items())
        and rope.kernel.constants["KV"] == attention.kernel.constants["KV"]
        and all(
            same(rope.views[a], attention.views[b]) for a, b in ((1, 3), (3, 0), (4, 1), (5, 2))
        )  # step, q, keys, values
        and all(apart(attention.views[5], view) for view in rope.views)
    )


def _rope_attention(rope: Launch, attention: Launch, compile_kernel: Compile) -> Launch:
    constants = {**attention.kernel.constants, "INTERLEAVED": rope.kernel.constants["INTERLEAVED"]}
    views = (*attention.views, rope.views[0], rope.views[2])
    return Launch(compile_kernel(_ROPE_ATTENTION, constants), attention.grid, views, attention.params)
