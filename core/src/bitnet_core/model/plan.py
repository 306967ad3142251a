"""The plan: a step of T rows becomes a list of launches, the same for every backend.

One row is one token of one sequence; prefill, decode and mixed batches differ only in their step buffers. The order of
operations is that of the BitNet b1.58 2B4T report (Ma et al. 2025) and of Llama, which has no sub-norms.
"""

from __future__ import annotations

import logging
from typing import Protocol

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal.device import View
from bitnet_core.kernels.catalogue import CATALOGUE, KV_TYPES, RELU2, SILU, kv_row_bytes
from bitnet_core.model.launch import Launch, Launcher
from bitnet_core.model.plan_scratch import HISTORY, Scratch
from bitnet_core.model.upload import DeviceWeights, LayerWeights, Linear

log = logging.getLogger(__name__)


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
        self._optional = launcher.device.info.kernels

    def body(self, scratch: Scratch, cache: CacheViews, rows: int, *, decode: bool = False) -> list[Launch]:
        """From step[rows] to the hidden states x[rows, H]; keys and values go to the cache.

        decode: no two rows belong to one sequence.
        """
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
            launches += self._attention(scratch, cache, rows, index, layer, decode)
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
        self, scratch: Scratch, cache: CacheViews, rows: int, index: int, layer: LayerWeights, decode: bool
    ) -> list[Launch]:
        config = self.config
        shape: dict[str, int | float] = {
            "rows": rows,
            "n_heads": config.n_heads,
            "n_kv_heads": config.n_kv_heads,
            "head_dim": config.head_dim,
            "row_bytes": kv_row_bytes(self.kv, config.head_dim),
        }
        cached = shape | {"max_blocks": cache.max_blocks, "scale": config.head_dim**-0.5}
        rotated = {"KV": self.kv, "INTERLEAVED": int(config.rope_interleaved)}
        x, qkv, step = scratch.view("x", rows), scratch.view("qkv", rows), scratch.view("step", rows)
        rope, queries, heads = self.weights.rope, scratch.view("queries", rows), scratch.view("heads", rows)
        caches = cache.keys[index], cache.values[index]
        launches = self._norm_matmul(scratch, rows, x, layer.attn_norm, layer.qkv, qkv)
        views = (qkv, step, rope, *caches, cache.tables, heads)
        if decode and (joined := self._joined("rope_attention", cached, views, rotated)):
            launches.append(joined)
        else:
            launches += [
                self.launcher.prepare(CATALOGUE["rope_store_kv"], shape, (qkv, step, rope, queries, *caches), rotated),
                self.launcher.prepare(
                    CATALOGUE["attention"], cached, (queries, *caches, step, cache.tables, heads), {"KV": self.kv}
                ),
            ]
        return launches + self._norm_matmul(scratch, rows, heads, layer.attn_sub_norm, layer.attn_output, x, add=1)

    def _feed_forward(self, scratch: Scratch, rows: int, layer: LayerWeights) -> list[Launch]:
        config = self.config
        x, up, down = scratch.view("x", rows), layer.gate_up, layer.ffn_down
        activation = RELU2 if config.activation == "relu2" else SILU
        if rows == 1 and len(up.parts) == 1 and not up.parts[0].block:
            m, part = scratch.view("gate_up", rows, 4 * config.ffn), up.parts[0]
            params = {
                "rows": rows,
                "columns": up.columns,
                "outs": config.ffn,
                "width": up.width,
                "eps": config.norm_eps,
            }
            views = (x, layer.ffn_norm, part.codes, part.scales, m)
            if glu := self._joined("norm_matmul_glu", params, views, {"NORM": 1, "ACT": activation}):
                return [glu, *self._norm_matmul(scratch, rows, m, layer.ffn_sub_norm, down, x, add=1)]
        gate_up = scratch.view("gate_up", rows)
        return [
            *self._norm_matmul(scratch, rows, x, layer.ffn_norm, up, gate_up),
            self.launcher.prepare(
                CATALOGUE["glu_norm_quantize"],
                {"rows": rows, "width": config.ffn, "stride": down.width, "eps": config.norm_eps},
                (gate_up, layer.ffn_sub_norm or layer.ffn_norm, *self._quantized(scratch, rows, down.width)),
                {"ACT": activation, "NORM": int(layer.ffn_sub_norm is not None)},
            ),
            *self._matmul(scratch, rows, down, x, config.hidden, add=1),
        ]

    def _joined(
        self,
        kernel: str,
        params: dict[str, int | float],
        views: tuple[View, ...],
        constants: dict[str, int],
    ) -> Launch | None:
        """Launch of an optional kernel; None where the device does not offer it, or not for such sizes."""
        if kernel not in self._optional:
            return None
        try:
            return self.launcher.prepare(CATALOGUE[kernel], params, views, constants)
        except UnsupportedError as exc:
            log.debug("%s: %s", kernel, exc)
            return None

    def _norm_matmul(
        self, scratch: Scratch, rows: int, x: View, gamma: View | None, linear: Linear, y: View, *, add: int = 0
    ) -> list[Launch]:
        """y[rows, outs] (+)= linear of x, normed (unless gamma is None) and quantized; a single row with scales of
        whole rows in the products' own launches, where those are on offer."""
        joined = []
        for part in linear.parts if rows == 1 else ():
            params = {
                "rows": rows,
                "columns": linear.columns,
                "outs": part.outs,
                "width": linear.width,
                "y_stride": linear.outs,
                "y_first": part.y_first,
                "eps": self.config.norm_eps,
            }
            views = (x, gamma or self.weights.output_norm, part.codes, part.scales, y)
            constants = {"NORM": int(gamma is not None), "ADD": add}
            launch = None if part.block else self._joined("norm_matmul", params, views, constants)
            if launch:
                joined.append(launch)
        if len(joined) == len(linear.parts):
            return joined
        return [
            self._norm_quantize(scratch, rows, x, gamma, linear),
            *self._matmul(scratch, rows, linear, y, linear.outs, add),
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
