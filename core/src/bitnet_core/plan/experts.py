"""The plan of models with a mixture of experts and sliding windows: base kernels, EXPERT_KERNELS and window_attention.

The router reads the normed row in f32 from the scratch buffer `plain`. Each row then has `used` rows of gate, up and
results, one per expert: the pairs of kernels.experts.
"""

from __future__ import annotations

from bitnet_hal.device import View
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import ParamDict
from bitnet_hal.launcher import Launch

from bitnet_core.model.config import Experts
from bitnet_core.plan.device_weights import LayerWeights, Linear
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.scratch import CacheViews, Scratch


class ExpertPlan(Plan):
    """The Plan of a model with a mixture of experts. Layers with a window rotate queries and keys, others do not."""

    left_out = frozenset({"decoder_layer"})

    def _attention(
        self, scratch: Scratch, cache: CacheViews, rows: int, index: int, layer: LayerWeights, decode: bool
    ) -> list[Launch]:
        x = scratch.view("x", rows)
        qkv = scratch.view("qkv", rows)
        heads = scratch.view("heads", rows)
        queries = scratch.view("queries", rows)
        step = scratch.view("step", rows)
        caches = (cache.keys[index], cache.values[index])
        windows = self.config.windows
        windowed = windows is not None and windows.layers[index]
        rope = self.weights.rope if windowed else self.weights.unrotated or self.weights.rope
        shape: ParamDict = {"rows": rows, **self._cached(cache)}
        return [
            *self._norm_matmul(scratch, rows, x, layer.attn_norm, layer.qkv, qkv),
            self.launcher.prepare(
                CATALOGUE["rope_store_kv"],
                {"rows": rows, **self._heads(), "eps": self.config.norm_eps},
                (qkv, step, rope, *self._head_gammas(layer), queries, *caches),
                self._rotated(),
            ),
            self.launcher.prepare(
                CATALOGUE["window_attention" if windowed else "attention"],
                shape | ({"window": windows.size} if windows and windowed else {}),
                (queries, *caches, step, cache.tables, heads),
                {"KV": self.kv},
            ),
            *self._norm_matmul(scratch, rows, heads, layer.attn_sub_norm, layer.attn_output, x, add=1),
        ]

    def _feed_forward(self, scratch: Scratch, rows: int, layer: LayerWeights) -> list[Launch]:
        config = self.config
        experts = config.experts
        assert experts is not None
        pairs = rows * experts.used
        plain = scratch.view("plain", rows)
        gate_up = scratch.view("gate_up", pairs, 8 * config.ffn)
        results = scratch.view("results", pairs, 4 * config.hidden)
        down = layer.ffn_down
        quantize = self.launcher.prepare(
            CATALOGUE["clamp_glu_quantize"],
            {"rows": pairs, "width": config.ffn, "stride": down.width, "limit": experts.limit},
            (gate_up, *self._quantized(scratch, pairs, down.width)),
            {"ABLOCK": self.ablock},
        )
        add = self.launcher.prepare(
            CATALOGUE["sum_experts"],
            {"rows": rows, "width": config.hidden, "used": experts.used},
            (results, scratch.view("shares", rows), scratch.view("x", rows)),
        )
        return [
            self._rms_norm(scratch, rows, rows, "row", layer.ffn_norm, plain),
            *self._route(scratch, rows, layer, experts, plain),
            self._norm_quantize(scratch, rows, plain, None, layer.gate_up),
            *self._products(scratch, rows, experts, layer.gate_up, gate_up, 1),
            quantize,
            *self._products(scratch, rows, experts, down, results, experts.used),
            add,
        ]

    def _route(self, scratch: Scratch, rows: int, layer: LayerWeights, experts: Experts, plain: View) -> list[Launch]:
        """Return the launches that choose each row's experts and compute their weights."""
        assert layer.router is not None
        routes = scratch.view("routes", rows)
        choose = self.launcher.prepare(
            CATALOGUE["route_experts"],
            {"rows": rows, "experts": experts.count, "used": experts.used},
            (routes, scratch.view("chosen", rows), scratch.view("shares", rows)),
        )
        return [*self.dense(layer.router, rows, plain, routes), choose]

    def _products(
        self, scratch: Scratch, rows: int, experts: Experts, linear: Linear, y: View, inputs: int
    ) -> list[Launch]:
        """Return the launches of every pair's product, y[rows * used, outs]. inputs: quantized rows for each row."""
        quantized = self._quantized(scratch, rows * inputs, linear.width)
        chosen = scratch.view("chosen", rows)
        shape: ParamDict = {"experts": experts.count, "used": experts.used, "inputs": inputs}
        return [
            self.launcher.prepare(
                CATALOGUE["matmul_experts"],
                self._product(rows, linear, part, linear.outs) | shape,
                (part.codes, part.scales, *quantized, chosen, y),
                self._scales(part.block),
            )
            for part in linear.parts
        ]
