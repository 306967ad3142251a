"""A decoder layer of one row in a single dispatch, whose workgroups wait for each other (decoder_layer_resident.comp).

A dispatch that waits for the one before costs more than such a meeting, and weights are read while it lasts. Every
buffer is written as the single launches would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from bitnet_core.hal import Grid, View
from bitnet_core.kernels.catalogue import ATTENTION, NORM_MATMUL, NORM_MATMUL_GLU, ROPE_STORE_KV
from bitnet_core.kernels.spec import Binding, KernelSpec, Param

from bitnet_vulkan import tuning
from bitnet_vulkan.instance import PhysicalDevice
from bitnet_vulkan.pipelines import Source, VulkanKernel


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with all that it is launched with."""

    kernel: VulkanKernel
    grid: Grid
    views: tuple[View, ...]
    params: bytes

    @property
    def values(self) -> dict[str, int | float]:
        """The parameters."""
        return self.kernel.spec.unpack(self.params)


Compile = Callable[[KernelSpec, Mapping[str, int]], VulkanKernel]

LAYER = 6
"""Launches of a layer."""
_KERNELS = ("norm_matmul", "rope_store_kv", "attention", "norm_matmul", "norm_matmul_glu", "norm_matmul")


def _as(access: str, *bindings: Binding) -> tuple[Binding, ...]:
    return tuple(replace(binding, access=access) for binding in bindings)  # type: ignore[arg-type]  # one of Access


_SPEC = KernelSpec(
    name="decoder_layer",
    meaning="the six launches of a decoder layer",
    bindings=(
        *_as("rw", NORM_MATMUL.bindings[0]),
        *NORM_MATMUL.bindings[1:4],
        *_as("rw", NORM_MATMUL.bindings[4]),
        *ROPE_STORE_KV.bindings[1:3],
        *_as("rw", *ROPE_STORE_KV.bindings[3:6]),
        ATTENTION.bindings[4],
        *_as("rw", ATTENTION.bindings[5]),
        *NORM_MATMUL.bindings[1:4],
        *NORM_MATMUL_GLU.bindings[1:4],
        *_as("rw", NORM_MATMUL_GLU.bindings[4]),
        *NORM_MATMUL.bindings[1:4],
    ),
    params=(
        Param("row_bytes", "u32", "of a cache row"),
        Param("max_blocks", "u32", "blocks of a sequence"),
        Param("scale", "f32", "of the scores"),
        Param("eps", "f32", "of the norms"),
    ),
    grid=lambda params, tuning: (tuning["GROUPS"], 1, 1),
    tuning=("GROUPS",),
    base=False,
)


def same(a: View, b: View) -> bool:
    return a.buffer is b.buffer and a.offset == b.offset and a.nbytes == b.nbytes


def apart(a: View, b: View) -> bool:
    return a.buffer is not b.buffer or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def decoder_layer(launches: Sequence[Launch], compile_kernel: Compile, physical: PhysicalDevice) -> Launch | None:
    """What to launch in place of the first six launches; None where they are no layer, or not one for this kernel or
    device."""
    layer = launches[:LAYER]
    if tuple(launch.kernel.spec.name for launch in layer) != _KERNELS or not physical.features.resident:
        return None
    qkv, rope, attention, out, glu, down = layer
    constants = _constants([launch.values for launch in layer], layer, physical)
    if constants is None:
        return None
    joints = (
        *((qkv.views[4], rope.views[0]), (rope.views[3], attention.views[0]), (rope.views[4], attention.views[1])),
        *((rope.views[5], attention.views[2]), (rope.views[1], attention.views[3]), (attention.views[5], out.views[0])),
        *((out.views[4], qkv.views[0]), (glu.views[0], qkv.views[0]), (down.views[0], glu.views[4])),
        (down.views[4], qkv.views[0]),
    )
    views = (*qkv.views, *rope.views[1:], *attention.views[4:], *out.views[1:4], *glu.views[1:], *down.views[1:4])
    written = [view for view, binding in zip(views, _SPEC.bindings, strict=True) if binding.access != "r"]
    if not all(same(a, b) for a, b in joints) or not all(apart(a, b) for a, b in combinations(written, 2)):
        return None
    values = attention.values
    params = {name: values[name] for name in ("row_bytes", "max_blocks", "scale")} | {"eps": qkv.values["eps"]}
    return Launch(compile_kernel(_SPEC, constants), _SPEC.grid(params, constants), views, _SPEC.pack(params))


def _constants(
    values: Sequence[Mapping[str, int | float]], launches: Sequence[Launch], physical: PhysicalDevice
) -> dict[str, int] | None:
    """Constants of the kernel, or None where it does not do such layers."""
    qkv, rope, attention, out, glu, down = values
    made = [launch.kernel.constants for launch in launches]
    hidden, ffn, dim = int(qkv["columns"]), int(glu["outs"]), int(rope["head_dim"])
    heads, kv_heads = int(rope["n_heads"]), int(rope["n_kv_heads"])
    fits = (
        all(part["rows"] == 1 for part in values)
        and all(part["y_first"] == 0 and part["outs"] == part["y_stride"] for part in (qkv, out, down))
        and len({part["eps"] for part in (qkv, out, glu, down)}) == 1
        and hidden == out["outs"] == glu["columns"] == down["outs"]
        and (heads + 2 * kv_heads) * dim == qkv["outs"]
        and heads * dim == out["columns"]
        and ffn == down["columns"]
        and all(attention[name] == value for name, value in rope.items())
        and made[1]["KV"] == made[2]["KV"]
        and [made[i]["ADD"] for i in (0, 3, 5)] == [0, 1, 1]
        and made[0]["NORM"] == made[4]["NORM"] == 1
        and made[3]["NORM"] == made[5]["NORM"]
        and hidden % 4 == ffn % 4 == heads % kv_heads == 0
        and dim in (32, 64, 128, 256)
    )
    if not fits:
        return None
    constants = {
        "SOURCE": Source.RESIDENT,
        **tuning.layer(physical),
        "WIDTH": hidden,
        "FFN": ffn,
        "HEADS": heads // kv_heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        **{name: made[1][name] for name in ("KV", "INTERLEAVED")},
        "ACT": made[4]["ACT"],
        "NORM": made[3]["NORM"],
    }
    if not constants["GROUPS"]:
        return None
    widest, waves = max(hidden, heads * dim, ffn), constants["GROUP"] // physical.features.subgroups
    shared = 4 * (heads // kv_heads * (dim * (waves + 1) + 3 * waves + 1) + 2 * dim) + widest + 512 + 12 * waves
    return constants if shared <= int(physical.info.extra["shared_memory"]) else None
