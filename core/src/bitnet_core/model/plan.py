"""The plan: a step of T rows becomes a list of launches, the same for every backend.

One row is one token of one sequence; prefill, decode and mixed batches differ only in their step buffers. The order of
operations is that of the BitNet b1.58 2B4T report (Ma et al. 2025) and of Llama, which has no sub-norms.
"""

from __future__ import annotations

from typing import Protocol

from bitnet_core.hal.device import View
from bitnet_core.kernels.catalogue import CATALOGUE, KV_TYPES, RELU2, SILU, kv_row_bytes
from bitnet_core.model.launch import Launch, Launcher
from bitnet_core.model.plan_scratch import HISTORY, Scratch
from bitnet_core.model.upload import DeviceWeights, LayerWeights, Linear


class CacheViews(Protocol):
    """What the plan binds of a paged cache."""

    @property
    def keys(self) -> tuple[View, ...]: ...

    @property
    def values(self) -> tuple[View, ...]: ...

    @property
    def tables(self) -> View:
        """i32[sequences, max_blocks]"""

    @property
    def max_blocks(self) -> int: ...


class Plan:
    """Launches of one model on one device, with cache rows of type `kv_dtype` (KV_TYPES)."""

    def __init__(self, weights: DeviceWeights, launcher: Launcher, kv_dtype: str) -> None:
        self.weights, self.launcher = weights, launcher
        self.config = weights.config
        self.kv = KV_TYPES.index(kv_dtype)

    def body(self, scratch: Scratch, cache: CacheViews, rows: int) -> list[Launch]:
        """From step[rows] to the hidden states x[rows, H]; keys and values go to the cache."""
        config = self.config
        embedding = self.weights.embedding
        step, x = scratch.view("step", rows), scratch.view("x", rows)
        launches = [
            self.launcher.prepare(
                CATALOGUE["embed_rows"],
                {"rows": rows, "hidden": config.hidden, "first": part.first, "count": part.count},
                (part.table, step, x),
                {"DTYPE": embedding.dtype},
            )
            for part in embedding.parts
        ]
        for index, layer in enumerate(self.weights.layers):
            launches += self._attention(scratch, cache, rows, index, layer)
            launches += self._feed_forward(scratch, rows, layer)
        return launches

    def head(self, scratch: Scratch, rows: int, wanted: int) -> list[Launch]:
        """Logits of the `wanted` rows named by the index buffer, out of a step of `rows` rows."""
        config, head = self.config, self.weights.head
        normed, logits = scratch.view("normed", wanted), scratch.view("logits", wanted)
        launches = [
            self.launcher.prepare(
                CATALOGUE["rms_norm"],
                {"rows": wanted, "width": config.hidden, "eps": config.norm_eps},
                (scratch.view("x", rows), scratch.view("index", wanted), self.weights.output_norm, normed),
            )
        ]
        launches += [
            self.launcher.prepare(
                CATALOGUE["matmul_dense"],
                {
                    "rows": wanted,
                    "outs": part.count,
                    "width": config.hidden,
                    "y_stride": config.vocab,
                    "y_first": part.first,
                },
                (normed, part.table, logits),
                {"DTYPE": head.dtype},
            )
            for part in head.parts
        ]
        return launches

    def advance(self, scratch: Scratch, cache: CacheViews, rows: int) -> Launch:
        """Greedy tokens of all rows into the step buffer and the history."""
        return self.launcher.prepare(
            CATALOGUE["argmax_advance"],
            {"rows": rows, "vocab": self.config.vocab, "max_blocks": cache.max_blocks, "ring": HISTORY},
            (
                scratch.view("logits", rows),
                scratch.view("index", rows),
                cache.tables,
                scratch.view("step", rows),
                scratch.view("history", rows),
            ),
        )

    def shortlist(self, scratch: Scratch, rows: int, k: int) -> Launch:
        """The k largest logits of every row (optional kernel top_k)."""
        return self.launcher.prepare(
            CATALOGUE["top_k"],
            {"rows": rows, "vocab": self.config.vocab, "k": k},
            (scratch.view("logits", rows), scratch.view("ids", rows, 4 * k), scratch.view("values", rows, 4 * k)),
        )

    def _attention(
        self, scratch: Scratch, cache: CacheViews, rows: int, index: int, layer: LayerWeights
    ) -> list[Launch]:
        config = self.config
        shape = {
            "rows": rows,
            "n_heads": config.n_heads,
            "n_kv_heads": config.n_kv_heads,
            "head_dim": config.head_dim,
            "row_bytes": kv_row_bytes(self.kv, config.head_dim),
        }
        qkv, step = scratch.view("qkv", rows), scratch.view("step", rows)
        queries, heads = scratch.view("queries", rows), scratch.view("heads", rows)
        keys, values = cache.keys[index], cache.values[index]
        return [
            self._norm_quantize(scratch, rows, scratch.view("x", rows), layer.attn_norm, layer.qkv),
            *self._matmul(scratch, rows, layer.qkv, qkv, layer.qkv.outs),
            self.launcher.prepare(
                CATALOGUE["rope_store_kv"],
                shape,
                (qkv, step, self.weights.rope, queries, keys, values),
                {"KV": self.kv, "INTERLEAVED": int(config.rope_interleaved)},
            ),
            self.launcher.prepare(
                CATALOGUE["attention"],
                shape | {"max_blocks": cache.max_blocks, "scale": config.head_dim**-0.5},
                (queries, keys, values, step, cache.tables, heads),
                {"KV": self.kv},
            ),
            self._norm_quantize(scratch, rows, heads, layer.attn_sub_norm, layer.attn_output),
            *self._matmul(scratch, rows, layer.attn_output, scratch.view("x", rows), config.hidden, add=1),
        ]

    def _feed_forward(self, scratch: Scratch, rows: int, layer: LayerWeights) -> list[Launch]:
        config = self.config
        gate_up, down = scratch.view("gate_up", rows), layer.ffn_down
        return [
            self._norm_quantize(scratch, rows, scratch.view("x", rows), layer.ffn_norm, layer.gate_up),
            *self._matmul(scratch, rows, layer.gate_up, gate_up, 2 * config.ffn),
            self.launcher.prepare(
                CATALOGUE["glu_norm_quantize"],
                {"rows": rows, "width": config.ffn, "stride": down.width, "eps": config.norm_eps},
                (gate_up, layer.ffn_sub_norm or layer.ffn_norm, *self._quantized(scratch, rows, down.width)),
                {
                    "ACT": RELU2 if config.activation == "relu2" else SILU,
                    "NORM": int(layer.ffn_sub_norm is not None),
                },
            ),
            *self._matmul(scratch, rows, down, scratch.view("x", rows), config.hidden, add=1),
        ]

    def _norm_quantize(self, scratch: Scratch, rows: int, x: View, gamma: View | None, linear: Linear) -> Launch:
        return self.launcher.prepare(
            CATALOGUE["rms_norm_quantize"],
            {"rows": rows, "width": linear.columns, "stride": linear.width, "eps": self.config.norm_eps},
            (x, gamma or self.weights.output_norm, *self._quantized(scratch, rows, linear.width)),
            {"NORM": int(gamma is not None)},
        )

    def _matmul(
        self, scratch: Scratch, rows: int, linear: Linear, y: View, y_stride: int, add: int = 0
    ) -> list[Launch]:
        quantized, scale, qsum = self._quantized(scratch, rows, linear.width)
        launches = []
        for part in linear.parts:
            params = {
                "rows": rows,
                "outs": part.outs,
                "width": linear.width,
                "y_stride": y_stride,
                "y_first": part.y_first,
            }
            if part.block:
                views: tuple[View, ...] = (part.codes, part.scales, quantized, scale, y)
                spec, constants = CATALOGUE["matmul_ternary_block"], {"ADD": add, "BLOCK": part.block}
            else:
                views = (part.codes, part.scales, quantized, scale, qsum, y)
                spec, constants = CATALOGUE["matmul_ternary"], {"ADD": add}
            launches.append(self.launcher.prepare(spec, params, views, constants))
        return launches

    @staticmethod
    def _quantized(scratch: Scratch, rows: int, width: int) -> tuple[View, View, View]:
        return scratch.view("quantized", rows, width), scratch.view("scale", rows), scratch.view("qsum", rows)
