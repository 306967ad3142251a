"""The plan: the list of launches of a step of T rows, the same for every backend.

One row is one token of one request; prefill, decode and mixed batches differ only in their step buffers. The order of
operations is that of the BitNet b1.58 2B4T report (Ma et al. 2025) and of Llama, which has no sub-norms.
"""

from __future__ import annotations

from bitnet_hal.device import View
from bitnet_hal.kernels.catalogue import CATALOGUE, KV_TYPES, RELU2, SILU, kv_row_bytes
from bitnet_hal.kernels.spec import ParamDict
from bitnet_hal.launcher import Launch, Launcher
from bitnet_hal.tuning.query import FEW_ROWS

from bitnet_core.plan.device_weights import DeviceWeights, LayerWeights, Linear
from bitnet_core.plan.head import HeadLayers
from bitnet_core.plan.kept_inputs import KeptInputs
from bitnet_core.plan.prediction_weights import PredictionWeights
from bitnet_core.plan.scratch import CacheViews, Scratch


class Plan(HeadLayers):
    """A builder of the launches of one model on one device.

    kv_cache_type: type of the cache's rows (KV_TYPES). fused: as in LinearLayers.
    """

    def __init__(self, weights: DeviceWeights, launcher: Launcher, kv_cache_type: str, *, fused: bool = True) -> None:
        super().__init__(weights, launcher, fused=fused)
        self.kv = KV_TYPES.index(kv_cache_type)
        self.activation = RELU2 if self.config.activation == "relu2" else SILU

    def body(
        self, scratch: Scratch, cache: CacheViews, rows: int, *, decode: bool = False, kept: KeptInputs | None = None
    ) -> list[Launch]:
        """Return the launches that compute the hidden states x[rows, H] from step[rows], or from x if earlier layers
        are on other devices, and store keys and values.

        decode: True if no two rows belong to one request. kept: buffers for the inputs of delta nets; only for a
        HybridPlan.
        """
        launches = self._embed(scratch, rows)
        for index, layer in enumerate(self.weights.layers):
            if decode and (whole := self._layer(scratch, cache, rows, index, layer)):
                launches.append(whole)
                continue
            launches += self._attention(scratch, cache, rows, index, layer, decode)
            launches += self._feed_forward(scratch, rows, layer)
        return launches

    def _embed(self, scratch: Scratch, rows: int) -> list[Launch]:
        if self.weights.embedding is None:
            return []
        return self._embedded(scratch, rows, scratch.view("x", rows))

    def _embedded(self, scratch: Scratch, rows: int, x: View) -> list[Launch]:
        """Copy rows of the embedding table to x[rows, H]."""
        embedding = self.weights.embedding
        assert embedding is not None  # `_embed` checks it
        hidden = self.config.hidden
        step = scratch.view("step", rows)
        if isinstance(embedding, Linear):
            return [
                self.launcher.prepare(
                    CATALOGUE["embed_rows_ternary"],
                    {
                        "rows": rows,
                        "hidden": hidden,
                        "width": embedding.width,
                        "first": part.y_first,
                        "count": part.outs,
                    },
                    (part.codes, part.scales, step, x),
                    {"BLOCK": part.block},
                )
                for part in embedding.parts
            ]
        return [
            self.launcher.prepare(
                CATALOGUE["embed_rows"],
                {"rows": rows, "hidden": hidden, "first": part.first, "count": part.count},
                (part.table, step, x),
                {"DTYPE": embedding.dtype},
            )
            for part in embedding.parts
        ]

    def _layer(self, scratch: Scratch, cache: CacheViews, rows: int, index: int, layer: LayerWeights) -> Launch | None:
        """Return one launch for a layer of few rows, if the device supports it and every matrix is in one part."""
        matrices = layer.qkv, layer.attn_output, layer.gate_up, layer.ffn_down
        block = matrices[0].parts[0].block
        if any(len(matrix.parts) > 1 or matrix.parts[0].block != block for matrix in matrices):
            return None
        config = self.config
        x = scratch.view("x", rows)
        norms = layer.attn_norm, layer.attn_sub_norm, layer.ffn_norm, layer.ffn_sub_norm
        operands = [
            view
            for gamma, matrix in zip(norms, matrices, strict=True)
            for view in (gamma or layer.attn_norm, matrix.parts[0].codes, matrix.parts[0].scales)
        ]
        return self._fused(
            "decoder_layer",
            {"rows": rows, "hidden": config.hidden, "ffn": config.ffn, **self._cached(cache), "eps": config.norm_eps},
            (
                *(x, scratch.view("qkv", rows), scratch.view("heads", rows)),
                *(scratch.view("gate_up", rows, 4 * config.ffn), scratch.view("step", rows), self.weights.rope),
                *(cache.keys[index], cache.values[index], cache.tables),
                *self._head_gammas(layer),
                *operands,
            ),
            {**self._rotated(), "ACT": self.activation, "NORM": int(config.sub_norms), **self._scales(block)},
        )

    def _heads(self) -> ParamDict:
        config = self.config
        return {
            "n_heads": config.n_heads,
            "n_kv_heads": config.n_kv_heads,
            "head_dim": config.head_dim,
            "row_bytes": kv_row_bytes(self.kv, config.head_dim),
        }

    def _cached(self, cache: CacheViews) -> ParamDict:
        return self._heads() | {"max_blocks": cache.max_blocks, "scale": self.config.head_dim**-0.5}

    def _rotated(self) -> dict[str, int]:
        config = self.config
        return {"KV": self.kv, "INTERLEAVED": int(config.rope_interleaved), "QKNORM": int(config.qk_norm)}

    def _head_gammas(self, layer: LayerWeights | PredictionWeights) -> tuple[View, View]:
        return layer.q_norm or layer.attn_norm, layer.k_norm or layer.attn_norm

    def _attention(
        self, scratch: Scratch, cache: CacheViews, rows: int, index: int, layer: LayerWeights, decode: bool
    ) -> list[Launch]:
        x = scratch.view("x", rows)
        qkv = scratch.view("qkv", rows)
        heads = scratch.view("heads", rows)
        caches = (cache.keys[index], cache.values[index])
        return [
            *self._qkv(scratch, rows, layer, qkv),
            *self._attended(scratch, cache, rows, layer, qkv, caches, heads, decode),
            *self._norm_matmul(scratch, rows, heads, layer.attn_sub_norm, layer.attn_output, x, add=1),
        ]

    def _qkv(self, scratch: Scratch, rows: int, layer: LayerWeights, qkv: View) -> list[Launch]:
        return self._norm_matmul(scratch, rows, scratch.view("x", rows), layer.attn_norm, layer.qkv, qkv)

    def _attended(
        self,
        scratch: Scratch,
        cache: CacheViews,
        rows: int,
        layer: LayerWeights,
        qkv: View,
        caches: tuple[View, View],
        heads: View,
        decode: bool,
    ) -> list[Launch]:
        """Compute heads[rows, q_width] from qkv, in one launch if the device supports it: of a decode step, or of a few
        rows."""
        params = {"rows": rows, **self._cached(cache), "eps": self.config.norm_eps}
        source = (qkv, scratch.view("step", rows), self.weights.rope, *self._head_gammas(layer))
        views = (*source, *caches, cache.tables, heads)
        if decode and (fused := self._fused("rope_attention", params, views, self._rotated())):
            return [fused]
        if rows <= self._mixed_rows and (fused := self._fused("rope_attention_mixed", params, views, self._rotated())):
            return [fused]
        return self.attend(scratch, cache, rows, layer, qkv, caches, heads)

    def attend(
        self,
        scratch: Scratch,
        cache: CacheViews,
        rows: int,
        layer: LayerWeights | PredictionWeights,
        qkv: View,
        caches: tuple[View, View],
        heads: View,
    ) -> list[Launch]:
        """Compute heads[rows, q_width] from qkv in two launches."""
        queries = scratch.view("queries", rows)
        return [
            self._rotate(scratch, rows, layer, qkv, queries, caches),
            self._attention_of(scratch, cache, rows, queries, caches, heads),
        ]

    def _rotate(
        self,
        scratch: Scratch,
        rows: int,
        layer: LayerWeights | PredictionWeights,
        qkv: View,
        queries: View,
        caches: tuple[View, View],
    ) -> Launch:
        """Rotate queries[rows, q_width] and keys, and store the keys and values."""
        step = scratch.view("step", rows)
        return self.launcher.prepare(
            CATALOGUE["rope_store_kv"],
            {"rows": rows, **self._heads(), "eps": self.config.norm_eps},
            (qkv, step, self.weights.rope, *self._head_gammas(layer), queries, *caches),
            self._rotated(),
        )

    def _attention_of(
        self, scratch: Scratch, cache: CacheViews, rows: int, queries: View, caches: tuple[View, View], heads: View
    ) -> Launch:
        return self.launcher.prepare(
            CATALOGUE["attention"],
            {"rows": rows, **self._cached(cache)},
            (queries, *caches, scratch.view("step", rows), cache.tables, heads),
            {"KV": self.kv},
        )

    def _feed_forward(self, scratch: Scratch, rows: int, layer: LayerWeights) -> list[Launch]:
        config = self.config
        down = layer.ffn_down
        x = scratch.view("x", rows)
        m = scratch.view("gate_up", rows, 4 * config.ffn)
        if glu := self._norm_matmul_glu(rows, x, m, layer):
            return [glu, *self._norm_matmul(scratch, rows, m, layer.ffn_sub_norm, down, x, add=1)]
        if glu := self._matmul_glu(scratch, rows, m, layer):
            normed = self._norm_quantize(scratch, rows, x, layer.ffn_norm, layer.gate_up)
            return [normed, glu, *self._norm_matmul(scratch, rows, m, layer.ffn_sub_norm, down, x, add=1)]
        gate_up = scratch.view("gate_up", rows)
        return [
            *self._gate_up(scratch, rows, layer, gate_up),
            self._glu_quantize(scratch, rows, gate_up, layer),
            *self._matmul(scratch, rows, down, x, config.hidden, add=1),
        ]

    def _gate_up(self, scratch: Scratch, rows: int, layer: LayerWeights, gate_up: View) -> list[Launch]:
        return self._norm_matmul(scratch, rows, scratch.view("x", rows), layer.ffn_norm, layer.gate_up, gate_up)

    def _glu_quantize(self, scratch: Scratch, rows: int, gate_up: View, layer: LayerWeights) -> Launch:
        width = layer.ffn_down.width
        return self.launcher.prepare(
            CATALOGUE["glu_norm_quantize"],
            {"rows": rows, "width": self.config.ffn, "stride": width, "eps": self.config.norm_eps},
            (gate_up, layer.ffn_sub_norm or layer.ffn_norm, *self._quantized(scratch, rows, width)),
            {"ACT": self.activation, "NORM": int(layer.ffn_sub_norm is not None), "ABLOCK": self.ablock},
        )

    def _norm_matmul_glu(self, rows: int, x: View, m: View, layer: LayerWeights) -> Launch | None:
        """Compute m[rows, F] of a few rows in one launch, if gate and up are in one part."""
        up = layer.gate_up
        config = self.config
        if rows > FEW_ROWS or len(up.parts) > 1:
            return None
        part = up.parts[0]
        shape = {"rows": rows, "columns": up.columns, "outs": config.ffn, "width": up.width, "eps": config.norm_eps}
        views = (x, layer.ffn_norm, part.codes, part.scales, m)
        return self._fused(
            "norm_matmul_glu", shape, views, {"NORM": 1, "ACT": self.activation, **self._scales(part.block)}
        )

    def _matmul_glu(self, scratch: Scratch, rows: int, m: View, layer: LayerWeights) -> Launch | None:
        """Compute m[rows, F] from the quantized input, if gate and up are in one part."""
        up = layer.gate_up
        part = layer.gate_up.parts[0]
        if len(up.parts) > 1:
            return None
        shape: ParamDict = {"rows": rows, "outs": self.config.ffn, "width": up.width}
        views = (part.codes, part.scales, *self._quantized(scratch, rows, up.width), m)
        return self._fused("matmul_ternary_glu", shape, views, {"ACT": self.activation, **self._scales(part.block)})
