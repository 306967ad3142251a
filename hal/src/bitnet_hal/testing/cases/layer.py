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
    """The sizes of a layer, and the position of its row (-1: an unused row)."""

    hidden: int = 256
    ffn: int = 384
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 64
    position: int = 40
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
    batch = AttentionBatch(
        [(0, shape.position)] if shape.position >= 0 else [(0, 3), (0, -1)], shape.heads, dim, shape.kv
    )
    params, arrays = cached(rng, batch)
    del params["rows"]
    outs = (n_heads + 2 * n_kv) * dim
    arrays["step"] = arrays["step"][-1:]
    scratch = {"qkv": outs, "heads": n_heads * dim, "m": ffn}
    return CaseLaunch(
        params | {"hidden": hidden, "ffn": ffn, "eps": 1e-5},
        {
            **arrays,
            **head_gammas(rng, dim),
            **{name: normal(rng, size) for name, size in scratch.items()},
            "x": normal(rng, hidden),
            "rope": rope_table(max(shape.position, 0) + 1, dim),
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
    """Put a NaN into x: the whole row must become NaN."""
    launch = _build(rng, LayerShape())
    row: Array = launch.arrays["x"]
    row[100] = np.nan
    return launch


def cases() -> Iterator[Case]:
    """Yield both activations, with and without sub-norms, every cache type, group scales, normed heads, odd widths."""
    shapes: dict[str, LayerShape] = {f"{cache}-cache": LayerShape(kv=kv) for kv, cache in enumerate(KV_TYPES)}
    shapes |= {f"position-{position}": LayerShape(position=position) for position in (0, 63, 64, 700)}
    shapes["silu-plain"] = LayerShape(act=SILU, norm=0)
    shapes["interleaved"] = LayerShape(act=SILU, norm=0, interleaved=1)
    shapes["gqa"] = LayerShape(512, 640, (8, 2), 64)
    shapes["odd-widths"] = LayerShape(192, 320, (3, 1), 32)
    shapes["queries-wider"] = LayerShape(128, 256, (4, 2), 64)
    shapes["large"] = LayerShape(2560, 6912, (20, 5), 128)
    shapes["unused-row"] = LayerShape(position=-1)
    for block in (64, 128, 256):
        shapes[f"qwen3-b{block}"] = LayerShape(256, 384, (4, 2), 64, 90, 1, 0, 1, SILU, 0, block, 32)
    shapes["qwen3-a128"] = LayerShape(256, 384, (4, 2), 64, 90, 1, 0, 1, SILU, 0, 128, 128)
    shapes["qwen3-large"] = LayerShape(2048, 6144, (16, 8), 128, 130, 1, 0, 1, SILU, 0, 128, 32)
    for label, shape in shapes.items():
        yield Case("decoder_layer", label, _build, (shape,))
    yield Case("decoder_layer", "nan", _nan)
