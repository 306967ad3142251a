"""A decoder layer of one row in a single launch, whose groups wait for each other (decoder_layer.cl).

A launch that waits for the one before costs more than such a meeting, and weights are read while it lasts. Every buffer
is written as the single launches would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from bitnet_core.hal.device import View
from bitnet_core.kernels.catalogue import NORM_MATMUL, NORM_MATMUL_GLU, ROPE_ATTENTION, ceil_div
from bitnet_core.kernels.spec import Binding, KernelSpec, Param

from bitnet_opencl.recording import Launch
from bitnet_opencl.tuning import Profile, layer_constants

LAYER = 5
"""Launches of a layer."""
_KERNELS = ("norm_matmul", "rope_attention", "norm_matmul", "norm_matmul_glu", "norm_matmul")
_LOCAL_BYTES = 49152
"""Of local memory that a group of any NVIDIA GPU may have."""


def _as(access: str, *bindings: Binding) -> tuple[Binding, ...]:
    return tuple(replace(binding, access=access) for binding in bindings)  # type: ignore[arg-type]  # one of Access


SPEC = KernelSpec(
    name="decoder_layer",
    meaning="a decoder layer of one row; the views as decoder_layer.cl lists them",
    bindings=(
        *_as("rw", NORM_MATMUL.bindings[0], NORM_MATMUL.bindings[4]),
        *ROPE_ATTENTION.bindings[1:3],
        ROPE_ATTENTION.bindings[5],
        *_as("rw", ROPE_ATTENTION.bindings[6], NORM_MATMUL_GLU.bindings[4]),
        *NORM_MATMUL.bindings[1:4],
        *ROPE_ATTENTION.bindings[3:5],
        *NORM_MATMUL.bindings[1:4],
        *NORM_MATMUL_GLU.bindings[1:4],
        *NORM_MATMUL.bindings[1:4],
    ),
    params=(
        Param("row_bytes", "u32", "of a cache row"),
        Param("max_blocks", "u32", "blocks of a sequence"),
        Param("scale", "f32", "of the scores"),
        Param("eps", "f32", "of the norms"),
    ),
    grid=lambda params, tuning: (tuning["MEMBERS"], 1, 1),
    tuning=("MEMBERS",),
    base=False,
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One launch in place of LAYER others."""

    constants: dict[str, int]
    views: tuple[View, ...]
    params: bytes


def _same(a: View, b: View) -> bool:
    return a.buffer is b.buffer and a.offset == b.offset and a.nbytes == b.nbytes


def _apart(a: View, b: View) -> bool:
    return a.buffer is not b.buffer or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def decoder_layer(launches: Sequence[Launch], profile: Profile) -> Layer | None:
    """What to launch in place of LAYER launches; None where they are no layer, or none for this device or kernel."""
    if not profile.members or tuple(launch.source.spec.name for launch in launches) != _KERNELS:
        return None
    constants = _constants(launches, profile)
    if constants is None:
        return None
    qkv, attention, out, glu, down = (launch.views for launch in launches)
    joints = (
        *((qkv[4], attention[0]), (attention[6], out[0]), (out[4], qkv[0]), (glu[0], qkv[0])),
        *((down[0], glu[4]), (down[4], qkv[0])),
    )
    common = (qkv[0], qkv[4], *attention[1:3], *attention[5:7], glu[4])
    written = (qkv[0], qkv[4], attention[6], glu[4], *attention[3:5])
    if not all(_same(a, b) for a, b in joints) or not all(_apart(a, b) for a, b in combinations(written, 2)):
        return None
    own = (*qkv[1:4], *attention[3:5], *out[1:4], *glu[1:4], *down[1:4])
    values = launches[1].values
    params = {name: values[name] for name in ("row_bytes", "max_blocks", "scale")} | {"eps": launches[0].values["eps"]}
    return Layer(constants, (*common, *own), SPEC.pack(params))


def _constants(launches: Sequence[Launch], profile: Profile) -> dict[str, int] | None:
    """Constants of the kernel, or None where it does not do such layers."""
    qkv, attention, out, glu, down = values = [launch.values for launch in launches]
    made = [launch.source.constants for launch in launches]
    hidden, ffn, dim = int(qkv["columns"]), int(glu["outs"]), int(attention["head_dim"])
    heads, kv_heads = int(attention["n_heads"]), int(attention["n_kv_heads"])
    fits = (
        all(part["rows"] == 1 for part in values)
        and all(part["y_first"] == 0 and part["outs"] == part["y_stride"] for part in (qkv, out, down))
        and len({part["eps"] for part in (qkv, out, glu, down)}) == 1
        and hidden == out["outs"] == glu["columns"] == down["outs"]
        and (heads + 2 * kv_heads) * dim == qkv["outs"]
        and heads * dim == out["columns"]
        and ffn == down["columns"]
        and [made[i]["ADD"] for i in (0, 2, 4)] == [0, 1, 1]
        and made[0]["NORM"] == made[3]["NORM"] == 1
        and made[2]["NORM"] == made[4]["NORM"]
        and hidden % 4 == ffn % 4 == dim % 8 == 0
    )
    if not fits:
        return None
    shape = {"HIDDEN": hidden, "FFN": ffn, "N_HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": dim}
    chosen = {name: made[1][name] for name in ("KV", "INTERLEAVED", "HEADS")}
    semantic = {"ACT": made[3]["ACT"], "NORM": made[2]["NORM"]}
    constants = {**shape, **chosen, **semantic, **layer_constants(profile, shape, chosen["HEADS"])}
    fits = dim <= 8 * constants["LANES"] and _local_bytes(constants) <= _LOCAL_BYTES
    return constants if fits else None


def _local_bytes(constants: Mapping[str, int]) -> int:
    """Of decoder_layer.cl: sums of each warp, the new heads, codes of the widest row, and what reductions exchange."""
    dim, warps = constants["HEAD_DIM"], constants["WG"] // 32
    sums = 16 * warps * constants["HEADS"] * (dim // 4 + 1)
    widest = max(constants["HIDDEN"], constants["N_HEADS"] * dim, constants["FFN"])
    return sums + 4 * (constants["HEADS"] + 2) * dim + ceil_div(widest, 128) * 128 + 12 * warps + 64
