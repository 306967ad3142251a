"""Rules that every launch of the engine keeps, so that the strictest device can run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.device import TransferMode, View
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import (
    CATALOGUE,
    DELTA_KERNELS,
    EXPERT_KERNELS,
    KV_TYPES,
    ROTATED_KERNELS,
    kv_row_bytes,
)

Make = Callable[..., Any]
SHAPES = {
    "[rows, 4]": lambda p: 16 * p["rows"],
    "[rows, hidden]": lambda p: 4 * p["rows"] * p["hidden"],
    "[rows, columns]": lambda p: 4 * p["rows"] * p["columns"],
    "[rows, outs]": lambda p: 4 * p["rows"] * p["outs"],
    "[2 outs]": lambda p: 8 * p["outs"],
    "[2 outs, width / 4]": lambda p: p["outs"] * p["width"] // 2,
    "[rows, width]": lambda p: p["rows"] * p["width"],
    "[rows, 2 * width]": lambda p: 8 * p["rows"] * p["width"],
    "[rows, y_stride]": lambda p: 4 * p["rows"] * p["y_stride"],
    "[rows, stride]": lambda p: p["rows"] * p["stride"] * (4 if "vocab" in p else 1),
    "[rows]": lambda p: 4 * p["rows"],
    "[outs]": lambda p: 4 * p["outs"],
    "[outs, width / 4]": lambda p: p["outs"] * p["width"] // 4,
    "[rows, n_heads * head_dim]": lambda p: 4 * p["rows"] * p["n_heads"] * p["head_dim"],
    "[rows, (n_heads + 2 n_kv_heads) * head_dim]": lambda p: (
        4 * p["rows"] * (p["n_heads"] + 2 * p["n_kv_heads"]) * p["head_dim"]
    ),
}
"""Bytes that a binding of this shape must have."""
HYBRID = Path(__file__).parents[1] / "golden" / "bonsai2" / "rotated-PTQ1_0.gguf"
MAPLE = Path(__file__).parents[1] / "golden" / "maple" / "TQ.gguf"
FUSED = {"norm_matmul", "norm_matmul_glu", "matmul_ternary_glu", "rope_attention"}
ELSEWHERE = {
    "matmul_ternary_block",
    "embed_rows_ternary",
    "decoder_layer",
    "pack_head",
    "approx_logits",
    "refine_logits",
    "rope_attention_mixed",
    "repack_q2_0",
}
"""Kernels that need another model or file or a larger head, or take the place of all others."""


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("transfer", list(TransferMode))
@pytest.mark.parametrize("style", ["offline", "llama"])
def test_every_launch_binds_what_its_kernel_declares(
    faulty: Any, make_engine: Make, tiny: Any, transfer: TransferMode, style: str, fused: bool
) -> None:
    kernels = frozenset({"top_k"} | (FUSED if fused else set()))
    device = faulty(transfer=transfer, alignment=256, max_binding=64 * 1024, kernels=kernels)
    seen = checked(device)
    engine = make_engine(style, device=device, kv_cache_type="int8", max_sequences=4, prefill_chunk=16)
    _run(engine, tiny.PROMPT)
    all_fused = fused and transfer is not TransferMode.UNIFIED
    unseen = (
        ELSEWHERE
        | DELTA_KERNELS
        | ROTATED_KERNELS
        | EXPERT_KERNELS
        | {"window_attention"}
        | ({"glu_norm_quantize"} if all_fused else FUSED if not fused else set())
    )
    if transfer is TransferMode.UNIFIED:
        unseen |= {"norm_matmul_glu", "matmul_ternary_glu"}  # wrapped gate and up matrices are not neighbours
    assert seen == set(CATALOGUE) - unseen


@pytest.mark.parametrize("fused", [frozenset(), ROTATED_KERNELS | FUSED], ids=["apart", "fused"])
@pytest.mark.parametrize("transfer", list(TransferMode))
def test_every_launch_of_a_hybrid_binds_what_its_kernel_declares(
    faulty: Any, transfer: TransferMode, fused: frozenset[str]
) -> None:
    """Kernels that fuse a norm to a product know of no rotation, so that they are left alone."""
    kernels = DELTA_KERNELS | fused | {"top_k"}
    device = faulty(transfer=transfer, alignment=256, max_binding=256 * 1024, kernels=kernels)
    seen = checked(device, 256 * 1024)
    source = open_model(HYBRID)
    engine = Engine(source, device, EngineOptions(max_sequences=2, prefill_chunk=16))
    _run(engine, list(range(80)))
    engine.close()
    source.close()
    apart = {"glu", "gated_rms_norm"} if fused else set()
    wrapped = {"matmul_ternary_glu"} if transfer is TransferMode.UNIFIED else set()  # gate and up are no neighbours
    assert seen >= (DELTA_KERNELS - apart) | (
        fused - {"norm_matmul", "norm_matmul_glu", "glu_rotate_quantize"} - wrapped
    )
    assert not seen & {*apart, "norm_matmul", "norm_matmul_glu"}


def test_every_launch_of_a_mixture_of_experts_binds_what_its_kernel_declares(faulty: Any) -> None:
    """Kernels that take the place of a whole layer, or of attention, know neither experts nor windows."""
    needed = EXPERT_KERNELS | {"window_attention"}
    device = faulty(alignment=256, kernels=needed | FUSED | {"top_k", "decoder_layer"})
    seen = checked(device, 1 << 20)
    source = open_model(MAPLE)
    engine = Engine(source, device, EngineOptions(max_sequences=2, prefill_chunk=16))
    _run(engine, list(range(80)))
    engine.close()
    source.close()
    assert seen >= needed | {"attention", "norm_matmul"}
    assert not seen & {"decoder_layer", "rope_attention", "norm_matmul_glu", "matmul_ternary_glu"}


def checked(device: Any, most: int = 64 * 1024) -> set[str]:
    """The names of the kernels that the device is given to run, each of whose launches is looked at."""
    seen: set[str] = set()

    def check(kernel: Any, grid: tuple[int, int, int], views: Sequence[View], params: bytes) -> None:
        spec, values = kernel.spec, kernel.spec.unpack(params)
        seen.add(spec.name)
        assert min(grid) >= 1
        read = {id(v.buffer) for v, b in zip(views, spec.bindings, strict=True) if b.access == "r"}
        written = sorted(
            (id(v.buffer), v.offset, v.offset + v.nbytes)
            for v, b in zip(views, spec.bindings, strict=True)
            if b.access != "r"
        )
        assert not read & {buffer for buffer, *_ in written}, f"{spec.name} reads and writes one buffer"
        for (buffer, _, end), (other, first, _) in pairwise(written):
            assert buffer != other or end <= first, f"{spec.name} writes the same bytes through two views"
        for view, binding in zip(views, spec.bindings, strict=True):
            assert view.offset % 256 == 0
            assert 0 < view.nbytes <= most
            if binding.shape in SHAPES:
                size = SHAPES[binding.shape](values)
                if binding.dtype == "f32" and binding.shape == "[rows, width]":
                    size *= 4
                if binding.dtype == "i8" and "head_dim" in binding.shape:
                    size //= 4
                assert view.nbytes == size, f"{spec.name}: {binding.name}"
                assert binding.nbytes(values, kernel.constants) <= size, f"{spec.name}: {binding.name}"

    device.before["launch"] = check
    return seen


def _run(engine: Engine, prompt: Sequence[int]) -> None:
    for sampling in (None, SamplingParams(temperature=1.0, top_k=9, seed=0), SamplingParams(temperature=1.0, seed=0)):
        for start in range(3):
            engine.add_request(prompt[start : 20 * start + 20], sampling, max_tokens=5)
            engine.step()
        while engine.step():
            pass


def test_joined_kernels_that_are_refused_for_a_size_give_way(faulty: Any, make_engine: Make, tiny: Any) -> None:
    expected = make_engine("llama").logits(tiny.PROMPT[:9])
    device = faulty(kernels=frozenset(FUSED))

    def refuse(spec: Any, constants: Any, params: Any) -> None:
        if spec.name in FUSED:
            raise UnsupportedError("too large")

    device.before["tuning"] = refuse
    engine = make_engine("llama", device=device)
    text = engine.add_request(tiny.PROMPT[:9], max_tokens=4)
    while engine.step():
        pass
    assert text.generated[0] == expected[-1].argmax()
    assert len(text.generated) == 4
    assert not FUSED & set(engine.kernel_launches)


def test_cache_buffers_hold_whole_blocks(make_engine: Make) -> None:
    for index, kv_cache_type in enumerate(KV_TYPES):
        engine = make_engine(kv_cache_type=kv_cache_type, kv_cache_size=1 << 20)
        cache = engine._ready().cache
        block = 64 * 2 * kv_row_bytes(index, 16)
        assert {view.nbytes for view in (*cache.keys, *cache.values)} == {cache.blocks * block}
        assert 2 * 2 * cache.blocks * block <= 1 << 20
