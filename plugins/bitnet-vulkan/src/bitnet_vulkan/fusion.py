"""Launches of a recording that one dispatch can do: with one row, the making of an input takes less time than a launch.

Every buffer is written as the single launches would: what is put together is still there for whoever reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bitnet_core.hal import Grid, View
from bitnet_core.kernels.catalogue import ATTENTION, MATMUL_TERNARY
from bitnet_core.kernels.sizes import product, query_key_value
from bitnet_core.kernels.spec import Binding, KernelSpec, Param

from bitnet_vulkan.pipelines import Source, VulkanKernel


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with all that it is launched with."""

    kernel: VulkanKernel
    grid: Grid
    views: tuple[View, ...]
    params: bytes


Compile = Callable[[KernelSpec, Mapping[str, int]], VulkanKernel]

_MADE = tuple(replace(binding, access="w") for binding in MATMUL_TERNARY.bindings[2:5])
_NORM_MATMUL = replace(
    MATMUL_TERNARY,
    name="matmul_ternary.norm",
    bindings=(
        *MATMUL_TERNARY.bindings[:2],
        *_MADE,
        MATMUL_TERNARY.bindings[5],
        Binding("x", "f32", "r", "what is normalized", product("rows", "columns")),
        Binding("gamma", "f32", "r", "[columns]", product("columns")),
    ),
    params=(
        *MATMUL_TERNARY.params,
        Param("columns", "u32", "of x"),
        Param("eps", "f32", "added to the mean square"),
        Param("keep", "u32", "1 where q, scale and qsum are stored"),
    ),
)
_GLU_MATMUL = replace(_NORM_MATMUL, name="matmul_ternary.glu")
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
_NORMS = {"rms_norm_quantize": _NORM_MATMUL, "glu_norm_quantize": _GLU_MATMUL}


def fuse(launches: Sequence[Launch], compile_kernel: Compile) -> list[Launch]:
    """The launches to record in place of `launches`."""
    fused: list[Launch] = []
    at = 0
    while at < len(launches):
        first = launches[at]
        users = _users(launches, at)
        if users:
            fused += [_norm_matmul(first, user, compile_kernel, keep=number == 0) for number, user in enumerate(users)]
            at += 1 + len(users)
        elif at + 1 < len(launches) and _rope_then_attention(first, launches[at + 1]):
            fused.append(_rope_attention(first, launches[at + 1], compile_kernel))
            at += 2
        else:
            fused.append(first)
            at += 1
    return fused


def _params(launch: Launch) -> dict[str, int | float]:
    return launch.kernel.spec.unpack(launch.params)


def _same(a: View, b: View) -> bool:
    return a.buffer is b.buffer and a.offset == b.offset and a.nbytes == b.nbytes


def _apart(a: View, b: View) -> bool:
    return a.buffer is not b.buffer or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def _users(launches: Sequence[Launch], at: int) -> list[Launch]:
    """The matrix products right after a norm that read what it makes."""
    norm = launches[at]
    if norm.kernel.spec.name not in _NORMS or _params(norm)["rows"] != 1:
        return []
    found: list[Launch] = []
    for user in launches[at + 1 :]:
        if (
            user.kernel.spec.name != "matmul_ternary"
            or user.kernel.source is not Source.FEW
            or user.kernel.constants["GROUP"] != norm.kernel.constants["GROUP"]
            or user.kernel.constants["WIDTH"] != norm.kernel.constants.get("WIDTH")
            or not all(_same(a, b) for a, b in zip(user.views[2:5], norm.views[2:5], strict=True))
            or not all(_apart(user.views[5], view) for view in norm.views)
        ):
            break
        found.append(user)
    return found


def _norm_matmul(norm: Launch, user: Launch, compile_kernel: Compile, *, keep: bool) -> Launch:
    spec = _NORMS[norm.kernel.spec.name]
    constants = {"ACT": 0, **norm.kernel.constants, **user.kernel.constants}
    of_norm = _params(norm)
    params = _params(user) | {"columns": of_norm["width"], "eps": of_norm["eps"], "keep": int(keep)}
    views = (*user.views, norm.views[0], norm.views[1])
    return Launch(compile_kernel(spec, constants), user.grid, views, spec.pack(params))


def _rope_then_attention(rope: Launch, attention: Launch) -> bool:
    if rope.kernel.spec.name != "rope_store_kv" or attention.kernel.spec.name != "attention":
        return False
    of_rope = _params(rope)
    of_attention = _params(attention)
    return (
        of_rope["rows"] == 1
        and attention.kernel.source is Source.SPLIT
        and all(of_attention[name] == value for name, value in of_rope.items())
        and rope.kernel.constants["KV"] == attention.kernel.constants["KV"]
        and all(
            _same(rope.views[a], attention.views[b]) for a, b in ((1, 3), (3, 0), (4, 1), (5, 2))
        )  # step, q, keys, values
        and all(_apart(attention.views[5], view) for view in rope.views)
    )


def _rope_attention(rope: Launch, attention: Launch, compile_kernel: Compile) -> Launch:
    constants = {**attention.kernel.constants, "INTERLEAVED": rope.kernel.constants["INTERLEAVED"]}
    views = (*attention.views, rope.views[0], rope.views[2])
    return Launch(compile_kernel(_ROPE_ATTENTION, constants), attention.grid, views, attention.params)
