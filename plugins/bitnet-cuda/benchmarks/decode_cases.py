"""The launches of one decode step of the 2B-4T shape, with random operands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from bitnet_core.kernels.catalogue import KV_BLOCK, ceil_div, kv_row_bytes
from bitnet_core.testing.cases.case import Arrays, Launch, Rng, blank
from bitnet_core.testing.cases.data import activations, normal, step_rows

HIDDEN, FFN, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 2560, 6912, 128256, 20, 5, 128


@dataclass(frozen=True)
class Step:
    """One launch. cold: the bindings that every layer has of its own, so that they are never in a cache."""

    kernel: str
    label: str
    launch: Launch
    cold: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all operands."""
        return sum(array.nbytes for array in self.launch.arrays.values())


def matmul(rng: Rng, rows: int, outs: int, width: int, add: int) -> Launch:
    """A ternary matrix; every byte of it is random, code 3 being as good as any."""
    q, scale, qsum = activations(rng, rows, width)
    return Launch(
        {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0},
        {
            "w": np.frombuffer(rng.bytes(outs * width // 4), np.uint8).copy(),
            "wscale": rng.uniform(0.5, 2, outs).astype(np.float32),
            "q": q,
            "scale": scale,
            "qsum": qsum,
            "y": normal(rng, rows, outs),
        },
        {"ADD": add},
    )


def normed(rng: Rng, rows: int, columns: int) -> Arrays:
    """x and gamma whose normed columns are whole quantization steps, as in the conformance kit."""
    gamma = rng.uniform(0.2, 2, columns).astype(np.float32)
    codes = rng.integers(-127, 128, (rows, columns)).astype(np.float32)
    codes[:, 0] = 127
    return {"x": codes / gamma, "gamma": gamma}


def norm_matmul(rng: Rng, rows: int, outs: int, columns: int, add: int) -> Launch:
    """matmul behind its norm."""
    product = matmul(rng, rows, outs, columns, add)
    arrays = {name: product.arrays[name] for name in ("w", "wscale", "y")}
    params = {**product.params, "columns": columns, "eps": 1e-5}
    return Launch(params, {**normed(rng, rows, columns), **arrays}, {"NORM": 1, "ADD": add})


def norm_matmul_glu(rng: Rng, rows: int) -> Launch:
    """The gate and up matrices behind their norm, and the squared ReLU."""
    product = matmul(rng, rows, 2 * FFN, HIDDEN, 0)
    arrays = {"w": product.arrays["w"], "wscale": product.arrays["wscale"], "m": blank(rows * FFN, "f32")}
    params = {"rows": rows, "columns": HIDDEN, "outs": FFN, "width": HIDDEN, "eps": 1e-5}
    return Launch(params, {**normed(rng, rows, HIDDEN), **arrays}, {"NORM": 1, "ACT": 0})


def norm(rng: Rng, rows: int) -> Launch:
    """rms_norm_quantize of the hidden states."""
    return Launch(
        {"rows": rows, "width": HIDDEN, "stride": HIDDEN, "eps": 1e-5},
        {"x": normal(rng, rows, HIDDEN), "gamma": normal(rng, HIDDEN), **_quantized(rows, HIDDEN)},
        {"NORM": 1},
    )


def glu(rng: Rng, rows: int) -> Launch:
    """glu_norm_quantize of the feed-forward width."""
    return Launch(
        {"rows": rows, "width": FFN, "stride": FFN, "eps": 1e-5},
        {"gate_up": normal(rng, rows, 2 * FFN), "gamma": normal(rng, FFN), **_quantized(rows, FFN)},
        {"ACT": 0, "NORM": 1},
    )


def _quantized(rows: int, width: int) -> Arrays:
    return {"q": blank(rows * width, "i8"), "scale": blank(rows, "f32"), "qsum": blank(rows, "i32")}


def cached(rng: Rng, rows: int, context: int) -> tuple[dict[str, int | float], Arrays]:
    """Parameters and arrays of a paged f16 cache that holds `context` positions of every row."""
    blocks = ceil_div(context + 1, KV_BLOCK)
    row_bytes = kv_row_bytes(1, HEAD_DIM)
    size = rows * blocks * KV_HEADS * KV_BLOCK * HEAD_DIM
    tables = np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks)
    lanes = np.arange(rows)
    slots = tables[:, context // KV_BLOCK] * KV_BLOCK + context % KV_BLOCK
    return (
        {"rows": rows, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "row_bytes": row_bytes},
        {
            "k_cache": normal(rng, size).astype(np.float16).view(np.uint8),
            "v_cache": normal(rng, size).astype(np.float16).view(np.uint8),
            "step": step_rows(lanes, np.full(rows, context), slots, lanes),
            "tables": tables,
        },
    )


def rope(rng: Rng, rows: int, context: int) -> Launch:
    """rope_store_kv behind `context` positions."""
    params, arrays = cached(rng, rows, context)
    del arrays["tables"]
    arrays["qkv"] = normal(rng, rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    arrays["rope"] = rng.uniform(-1, 1, (context + 1, HEAD_DIM // 2, 2)).astype(np.float32)
    arrays["q"] = blank(rows * HEADS * HEAD_DIM, "f32")
    return Launch(params, arrays, {"KV": 1, "INTERLEAVED": 0})


def attention(rng: Rng, rows: int, context: int) -> Launch:
    """attention over `context` positions."""
    params, arrays = cached(rng, rows, context)
    params |= {"max_blocks": arrays["tables"].shape[1], "scale": HEAD_DIM**-0.5}
    arrays["q"] = normal(rng, rows, HEADS * HEAD_DIM)
    arrays["out"] = blank(rows * HEADS * HEAD_DIM, "f32")
    return Launch(params, arrays, {"KV": 1})


def rope_attention(rng: Rng, rows: int, context: int) -> Launch:
    """rope_attention behind `context` positions; no rotated key rounds."""
    params, arrays = cached(rng, rows, context)
    params |= {"max_blocks": arrays["tables"].shape[1], "scale": HEAD_DIM**-0.5}
    arrays["qkv"] = (rng.integers(-48, 49, (rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM)) / 16).astype(np.float32)
    arrays["rope"] = (rng.integers(-8, 9, (context + 1, HEAD_DIM // 2, 2)) / 8).astype(np.float32)
    arrays["out"] = blank(rows * HEADS * HEAD_DIM, "f32")
    return Launch(params, arrays, {"KV": 1, "INTERLEAVED": 0})


def final_norm(rng: Rng, rows: int) -> Launch:
    """rms_norm in front of the head."""
    return Launch(
        {"rows": rows, "width": HIDDEN, "eps": 1e-5},
        {
            "x": normal(rng, rows, HIDDEN),
            "index": np.arange(rows, dtype=np.int32),
            "gamma": normal(rng, HIDDEN),
            "y": blank(rows * HIDDEN, "f32"),
        },
    )


def head(rng: Rng, rows: int) -> Launch:
    """The f16 head: 656 MB, of which 1 / 16 is random and the rest repeats it."""
    table = np.tile((normal(rng, VOCAB // 16, HIDDEN)).astype(np.float16), (16, 1))
    return Launch(
        {"rows": rows, "outs": VOCAB, "width": HIDDEN, "y_stride": VOCAB, "y_first": 0},
        {"x": normal(rng, rows, HIDDEN), "w": table.reshape(-1).view(np.uint8), "y": blank(rows * VOCAB, "f32")},
        {"DTYPE": 1},
    )


def argmax(rng: Rng, rows: int) -> Launch:
    """argmax_advance, with room for a quarter of a million steps."""
    lanes = np.arange(rows)
    return Launch(
        {"rows": rows, "vocab": VOCAB, "max_blocks": 4096, "ring": 64},
        {
            "logits": normal(rng, rows, VOCAB),
            "index": lanes.astype(np.int32),
            "tables": np.zeros((rows, 4096), np.int32),
            "step": step_rows(lanes, lanes, lanes, lanes),
            "history": np.zeros((rows, 65), np.int32),
        },
    )


def steps(rows: int) -> Iterator[Step]:
    """Every kernel of the step at `rows` rows, in the order of the plan."""
    rng = np.random.default_rng(rows)
    weights = ("w", "wscale")
    caches = ("k_cache", "v_cache")
    yield Step("rms_norm_quantize", "hidden", norm(rng, rows), ("gamma",))
    yield Step("matmul_ternary", "qkv", matmul(rng, rows, 3840, HIDDEN, 0), weights)
    yield Step("rope_store_kv", "c128", rope(rng, rows, 128), caches)
    for context in (128, 512, 2048):
        yield Step("attention", f"c{context}", attention(rng, rows, context), caches)
    yield Step("matmul_ternary", "o", matmul(rng, rows, HIDDEN, HIDDEN, 1), weights)
    yield Step("matmul_ternary", "gate_up", matmul(rng, rows, 2 * FFN, HIDDEN, 0), weights)
    yield Step("glu_norm_quantize", "ffn", glu(rng, rows), ("gamma",))
    yield Step("matmul_ternary", "down", matmul(rng, rows, HIDDEN, FFN, 1), weights)
    for context in (128, 512, 2048):
        yield Step("rope_attention", f"c{context}", rope_attention(rng, rows, context), caches)
    if rows == 1:
        yield Step("norm_matmul", "qkv", norm_matmul(rng, rows, 3840, HIDDEN, 0), ("gamma", *weights))
        yield Step("norm_matmul", "o", norm_matmul(rng, rows, HIDDEN, HIDDEN, 1), ("gamma", *weights))
        yield Step("norm_matmul_glu", "gate_up", norm_matmul_glu(rng, rows), ("gamma", *weights))
        yield Step("norm_matmul", "down", norm_matmul(rng, rows, HIDDEN, FFN, 1), ("gamma", *weights))
    yield Step("rms_norm", "hidden", final_norm(rng, rows), ("gamma",))
    yield Step("matmul_dense", "head", head(rng, rows), ("w",))
    yield Step("argmax_advance", "head", argmax(rng, rows), ())
