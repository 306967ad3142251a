"""Cases of decoder_layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bitnet_hal.kernels.catalogue import KV_TYPES, RELU2, SILU
from bitnet_hal.rounding import ceil_div
from bitnet_hal.testing.cases.attention import AttentionBatch, cached
from bitnet_hal.testing.cases.case import Array, Arrays, Case, CaseLaunch, Rng
from bitnet_hal.testing.cases.data import normal, padded, ternary
from bitnet_hal.testing.cases.rope import head_gammas, rope_table


@dataclass(frozen=True)
class LayerShape:
    """The sizes of a layer, and the positions of its rows (-1: an unused row)."""

    hidden: int = 256
    ffn: int = 384
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 64
    positions: tuple[int, ...] = (40,)
    kv: int = 1
    interleaved: int = 0
    qknorm: int = 0
    act: int = RELU2
    norm: int = 1
    block: int = 0
    act_group: int = 0


def _matrix(rng: Rng, name: str, rows: int, columns: int, block: int) -> Arrays:
    """Return codes, scales that keep results near the inputs' magnitude, and the gamma of the inputs."""
    width = padded(columns)
    scales = rows * (ceil_div(width, block) if block else 1)
    return {
        f"gamma_{name}": rng.uniform(0.5, 1.5, columns).astype(np.float32),
        f"w_{name}": ternary(rng, rows, width, columns),
        f"s_{name}": rng.uniform(0.5, 1.5, scales).astype(np.float32) / np.float32(columns**0.5),
    }


def _build(rng: Rng, shape: LayerShape) -> CaseLaunch:
    hidden = shape.hidden
    ffn = shape.ffn
    n_heads, n_kv = shape.heads
    dim = shape.head_dim
    rows = len(shape.positions)
    used = max(shape.positions) >= 0
    batch = AttentionBatch(list(enumerate(shape.positions)) if used else [(0, 3), (0, -1)], shape.heads, dim, shape.kv)
    params, arrays = cached(rng, batch)
    outs = (n_heads + 2 * n_kv) * dim
    arrays["step"] = arrays["step"][-rows:]
    scratch = {"qkv": rows * outs, "heads": rows * n_heads * dim, "m": rows * ffn}
    return CaseLaunch(
        params | {"rows": rows, "hidden": hidden, "ffn": ffn, "eps": 1e-5},
        {
            **arrays,
            **head_gammas(rng, dim),
            **{name: normal(rng, size) for name, size in scratch.items()},
            "x": normal(rng, rows * hidden),
            "rope": rope_table(max(*shape.positions, 0) + 1, dim),
            **_matrix(rng, "qkv", outs, hidden, shape.block),
            **_matrix(rng, "o", hidden, n_heads * dim, shape.block),
            **_matrix(rng, "up", 2 * ffn, hidden, shape.block),
            **_matrix(rng, "down", hidden, ffn, shape.block),
        },
        {
            "KV": shape.kv,
            "INTERLEAVED": shape.interleaved,
            "QKNORM": shape.qknorm,
            "ACT": shape.act,
            "NORM": shape.norm,
            "BLOCK": shape.block,
            "ABLOCK": shape.act_group,
        },
    )


def _nan(rng: Rng) -> CaseLaunch:
    """Put a NaN into the second row of x: this row must become NaN as a whole, and no other."""
    launch = _build(rng, LayerShape(positions=(40, 7)))
    row: Array = launch.arrays["x"]
    row[256 + 100] = np.nan
    return launch


def cases() -> Iterator[Case]:
    """Yield both activations, with and without sub-norms, every cache type, group scales, normed heads, odd widths,
    several rows."""
    shapes: dict[str, LayerShape] = {f"{cache}-cache": LayerShape(kv=kv) for kv, cache in enumerate(KV_TYPES)}
    shapes |= {f"position-{position}": LayerShape(positions=(position,)) for position in (0, 63, 64, 700)}
    shapes["silu-plain"] = LayerShape(act=SILU, norm=0)
    shapes["interleaved"] = LayerShape(act=SILU, norm=0, interleaved=1)
    shapes["gqa"] = LayerShape(512, 640, (8, 2), 64)
    shapes["odd-widths"] = LayerShape(192, 320, (3, 1), 32)
    shapes["queries-wider"] = LayerShape(128, 256, (4, 2), 64)
    shapes["large"] = LayerShape(2560, 6912, (20, 5), 128)
    shapes["unused-row"] = LayerShape(positions=(-1,))
    for block in (64, 128, 256):
        shapes[f"qwen3-b{block}"] = LayerShape(256, 384, (4, 2), 64, (90,), 1, 0, 1, SILU, 0, block, 32)
    shapes["qwen3-a128"] = LayerShape(256, 384, (4, 2), 64, (90,), 1, 0, 1, SILU, 0, 128, 128)
    shapes["qwen3-large"] = LayerShape(2048, 6144, (16, 8), 128, (130,), 1, 0, 1, SILU, 0, 128, 32)
    shapes["rows-2"] = LayerShape(positions=(40, 130))
    shapes["rows-4"] = LayerShape(512, 640, (8, 2), 64, (0, 63, -1, 300))
    shapes["rows-4-int8"] = LayerShape(192, 320, (3, 1), 32, (5, 64, 200, 17), kv=2)
    shapes["rows-4-large"] = LayerShape(2560, 6912, (20, 5), 128, (40, 200, 7, 90))
    shapes["rows-3-qwen3-a32"] = LayerShape(256, 384, (4, 2), 64, (90, 0, 33), 1, 0, 1, SILU, 0, 128, 32)
    shapes["rows-4-qwen3-a128"] = LayerShape(256, 384, (4, 2), 64, (90, 7, 128, 64), 1, 0, 1, SILU, 0, 128, 128)
    shapes["rows-6-qwen3-a32"] = LayerShape(256, 384, (4, 2), 64, (90, -1, 33, 0, 64, 7), 1, 0, 1, SILU, 0, 128, 32)
    for rows in (7, 8):
        shapes[f"rows-{rows}"] = LayerShape(256, 640, (8, 2), 64, tuple(range(0, 30 * rows, 30)))
    shapes["rows-20"] = LayerShape(192, 320, (3, 1), 32, (-1, *range(0, 190, 10)), kv=2)
    shapes["rows-33-qwen3-a32"] = LayerShape(256, 384, (4, 2), 64, tuple(range(0, 165, 5)), 1, 0, 1, SILU, 0, 64, 32)
    shapes["rows-32-large"] = LayerShape(2560, 6912, (20, 5), 128, tuple(range(0, 160, 5)))
    shapes["rows-16-qwen3-large"] = LayerShape(
        2048, 6144, (16, 8), 128, tuple(range(0, 160, 10)), 1, 0, 1, SILU, 0, 128, 32
    )
    for label, shape in shapes.items():
        yield Case("decoder_layer", label, _build, (shape,))
    yield Case("decoder_layer", "nan", _nan)
