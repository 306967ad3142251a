"""The plan of models with gated delta nets, whose weights may be rotated: base kernels and DELTA_KERNELS.

Where weights are rotated every ternary matrix multiplies H(signs * x) in place of x (kernels.delta), so each input goes
through hadamard_rotate before it is quantized: `plain` and `turned` are the scratch buffers of the two.
"""

from __future__ import annotations

from bitnet_hal.device import View
from bitnet_hal.kernels.catalogue import CATALOGUE, DELTA_KERNELS, SIGMOID, SILU
from bitnet_hal.kernels.spec import ParamDict
from bitnet_hal.launcher import Launch, Launcher

from bitnet_core.model.config import DeltaNet, ModelConfig
from bitnet_core.plan.layers import CacheViews, Plan
from bitnet_core.plan.scratch import Scratch
from bitnet_core.plan.weights import DeltaWeights, DeviceWeights, LayerWeights, Linear

_UNIT_EPS = 1e-6
"""Under the root of the length of queries and keys (Qwen3.5's l2norm)."""
_OF_ROTATED = frozenset({"hadamard_rotate", "glu"})


def needed_kernels(config: ModelConfig) -> frozenset[str]:
    """The optional kernels without which a device cannot run the model."""
    if config.delta is None:
        return frozenset()
    return DELTA_KERNELS if config.hadamard else DELTA_KERNELS - _OF_ROTATED


class HybridPlan(Plan):
    """As `Plan`. Kernels that join others are not used: they know of no gates and no rotations."""

    def __init__(self, weights: DeviceWeights, launcher: Launcher, kv_dtype: str) -> None:
        super().__init__(weights, launcher, kv_dtype)
        self._optional = frozenset()

    def body(self, scratch: Scratch, cache: CacheViews, rows: int, *, decode: bool = False) -> list[Launch]:
        """See Plan. States of delta nets go on in the cache."""
        launches = self._embed(scratch, rows)
        keys, states = iter(zip(cache.keys, cache.values, strict=True)), iter(cache.states)
        for layer in self.weights.layers:
            launches += self._input(scratch, rows, layer)
            if layer.delta:
                launches += self._delta_net(scratch, rows, layer, layer.delta, next(states))
            else:
                launches += self._gated_attention(scratch, cache, rows, layer, next(keys))
            launches += self._project(scratch, rows, layer.attn_output)
            launches += self._feed_forward(scratch, rows, layer)
        return launches

    def head(self, scratch: Scratch, rows: int, wanted: int, keep: int = 0) -> list[Launch]:
        """See Plan."""
        head, normed = self.weights.head, scratch.view("normed", wanted)
        norm = self._rms_norm(scratch, rows, wanted, "index", self.weights.output_norm, normed)
        if isinstance(head, Linear):
            logits = scratch.view("logits", wanted)
            quantize = self._quantize(scratch, wanted, normed, head)
            return [norm, *quantize, *self._matmul(scratch, wanted, head, logits, self.config.vocab)]
        turned, launches = self._turned(scratch, wanted, normed)
        return [norm, *launches, *self._dense(head, wanted, turned, scratch.view("logits", wanted))]

    def _embed(self, scratch: Scratch, rows: int) -> list[Launch]:
        if not self.config.hadamard:
            return super()._embed(scratch, rows)
        z = scratch.view("plain", rows, 4 * self.config.hidden)
        return [*self._embedded(scratch, rows, z), self._hadamard(rows, z, scratch.view("x", rows), inverse=1)]

    def _input(self, scratch: Scratch, rows: int, layer: LayerWeights) -> list[Launch]:
        """The norm before a mixer, into `plain` and quantized; and the products that every mixer has."""
        h = scratch.view("plain", rows, 4 * self.config.hidden)
        assert layer.gate is not None
        return [
            self._rms_norm(scratch, rows, rows, "row", layer.attn_norm, h),
            *self._quantize(scratch, rows, h, layer.qkv),
            *self._matmul(scratch, rows, layer.qkv, scratch.view("qkv", rows, 4 * layer.qkv.outs), layer.qkv.outs),
            *self._matmul(scratch, rows, layer.gate, scratch.view("gate", rows, 4 * layer.gate.outs), layer.gate.outs),
        ]

    def _gated_attention(
        self, scratch: Scratch, cache: CacheViews, rows: int, layer: LayerWeights, caches: tuple[View, View]
    ) -> list[Launch]:
        """From `qkv` and `gate` to `plain`: attention(q, k, v) * sigmoid(gate)."""
        config, width = self.config, 4 * self.config.q_width
        heads = scratch.view("heads", rows, width)
        qkv = scratch.view("qkv", rows, 4 * layer.qkv.outs)
        gated = (heads, scratch.view("gate", rows, width), layer.attn_norm, scratch.view("plain", rows, width))
        shape: ParamDict = {"rows": rows, "n_heads": config.n_heads, "head_dim": config.head_dim, "groups": 1}
        return [
            *self._attend(scratch, cache, rows, layer, qkv, caches, heads),
            self._gated_norm(shape, gated, {"NORM": 0, "ACT": SIGMOID}),
        ]

    def _delta_net(
        self, scratch: Scratch, rows: int, layer: LayerWeights, own: DeltaWeights, states: tuple[View, View]
    ) -> list[Launch]:
        """From `plain`, `qkv` and `gate` to `plain`: norm(delta rule(conv(qkv))) * silu(gate)."""
        net = self.config.delta
        assert net is not None
        step, mixed = scratch.view("step", rows), scratch.view("mixed", rows)
        gates, width = scratch.view("gates", rows), 4 * net.value_width
        heads, plain = scratch.view("heads", rows, width), scratch.view("plain", rows, width)
        qkv = scratch.view("qkv", rows, 4 * net.channels)
        prepare = self.launcher.prepare
        return [
            *self._dense(own.gates, rows, scratch.view("plain", rows, 4 * self.config.hidden), gates),
            prepare(
                CATALOGUE["causal_conv1d"],
                {"rows": rows, "channels": net.channels, "taps": net.conv},
                (qkv, step, own.conv, states[0], mixed),
            ),
            prepare(
                CATALOGUE["gated_delta_rule"],
                {"rows": rows, **_shape(net), "eps": _UNIT_EPS},
                (mixed, gates, own.rate, own.dt, step, states[1], heads),
            ),
            self._gated_norm(
                {
                    "rows": rows,
                    "n_heads": net.value_heads,
                    "head_dim": net.value_dim,
                    "groups": net.key_heads if net.regrouped else 1,
                },
                (heads, scratch.view("gate", rows, width), own.norm, plain),
                {"NORM": 1, "ACT": SILU},
            ),
        ]

    def _gated_norm(self, shape: ParamDict, views: tuple[View, ...], constants: dict[str, int]) -> Launch:
        params = shape | {"eps": self.config.norm_eps}
        return self.launcher.prepare(CATALOGUE["gated_rms_norm"], params, views, constants)

    def _feed_forward(self, scratch: Scratch, rows: int, layer: LayerWeights) -> list[Launch]:
        config, gate_up = self.config, scratch.view("gate_up", rows)
        h = scratch.view("plain", rows, 4 * config.hidden)
        launches = [
            self._rms_norm(scratch, rows, rows, "row", layer.ffn_norm, h),
            *self._quantize(scratch, rows, h, layer.gate_up),
            *self._matmul(scratch, rows, layer.gate_up, gate_up, layer.gate_up.outs),
        ]
        if not config.hadamard:
            glu = self._glu_quantize(scratch, rows, gate_up, layer)
            return [
                *launches,
                glu,
                *self._matmul(scratch, rows, layer.ffn_down, scratch.view("x", rows), config.hidden, 1),
            ]
        m = scratch.view("plain", rows, 4 * config.ffn)
        glu = self.launcher.prepare(
            CATALOGUE["glu"], {"rows": rows, "width": config.ffn}, (gate_up, m), {"ACT": self.activation}
        )
        return [*launches, glu, *self._project(scratch, rows, layer.ffn_down)]

    def _project(self, scratch: Scratch, rows: int, linear: Linear) -> list[Launch]:
        """The product of `plain`, added to x."""
        source = scratch.view("plain", rows, 4 * linear.columns)
        product = self._matmul(scratch, rows, linear, scratch.view("x", rows), self.config.hidden, add=1)
        return [*self._quantize(scratch, rows, source, linear), *product]

    def _quantize(self, scratch: Scratch, rows: int, source: View, linear: Linear) -> list[Launch]:
        """The input of a product, rotated where the model is."""
        turned, launches = self._turned(scratch, rows, source)
        return [*launches, self._norm_quantize(scratch, rows, turned, None, linear)]

    def _turned(self, scratch: Scratch, rows: int, source: View) -> tuple[View, list[Launch]]:
        """What a rotated matrix multiplies in place of `source`, and the launches that make it."""
        if not self.config.hadamard:
            return source, []
        turned = scratch.view("turned", rows, source.nbytes // rows)
        return turned, [self._hadamard(rows, source, turned)]

    def _hadamard(self, rows: int, source: View, target: View, inverse: int = 0) -> Launch:
        width = source.nbytes // (4 * rows)
        return self.launcher.prepare(
            CATALOGUE["hadamard_rotate"],
            {"rows": rows, "width": width, "block": self.config.hadamard},
            (source, self.weights.signs[width], target),
            {"INVERSE": inverse},
        )


def _shape(net: DeltaNet) -> ParamDict:
    return {
        "n_heads": net.value_heads,
        "n_key_heads": net.key_heads,
        "key_dim": net.key_dim,
        "value_dim": net.value_dim,
    }
