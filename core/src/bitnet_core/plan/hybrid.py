"""The plan of models with gated delta nets, whose weights may be rotated: base kernels and DELTA_KERNELS.

If weights are rotated, every ternary matrix multiplies H(signs * x) in place of x (kernels.delta), so each input passes
hadamard_rotate before it is quantized. Scratch buffers: `plain` holds x, `turned` the rotated x.
"""

from __future__ import annotations

from bitnet_hal.device import View
from bitnet_hal.kernels.catalogue import CATALOGUE, SIGMOID, SILU
from bitnet_hal.kernels.spec import ParamDict
from bitnet_hal.launcher import Launch

from bitnet_core.model.config import DeltaNet
from bitnet_core.plan.device_weights import DeltaWeights, LayerWeights, Linear
from bitnet_core.plan.kept_inputs import KeptInputs
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.scratch import CacheViews, Scratch

_UNIT_EPS = 1e-6
"""Epsilon of the L2 norm of queries and keys (Qwen3.5's l2norm)."""


class HybridPlan(Plan):
    """The Plan of a model with delta nets. For rotated weights it uses fused kernels that also rotate
    (kernels.rotated)."""

    def body(
        self, scratch: Scratch, cache: CacheViews, rows: int, *, decode: bool = False, kept: KeptInputs | None = None
    ) -> list[Launch]:
        """Return the launches of all layers, as Plan.body; they also advance the delta net states in the cache."""
        launches = self._embed(scratch, rows)
        keys = iter(zip(cache.keys, cache.values, strict=True))
        nets = iter(enumerate(cache.states))
        for layer in self.weights.layers:
            if layer.delta:
                net, states = next(nets)
                inputs = kept.views(net, rows) if kept else None
                qkv, gates, gate, products = self._input(scratch, rows, layer, inputs)
                launches += products
                launches += self._recurrence(scratch, rows, layer.delta, states, qkv, gates)
                launches += self._gated_heads(scratch, rows, layer, layer.delta, gate)
            else:
                qkv, _, gate, products = self._input(scratch, rows, layer)
                launches += products
                launches += self._gated_attention(scratch, cache, rows, layer, next(keys), qkv, gate, decode)
            launches += self._matmul(scratch, rows, layer.attn_output, scratch.view("x", rows), self.config.hidden, 1)
            launches += self._feed_forward(scratch, rows, layer)
        return launches

    def repeat(self, scratch: Scratch, cache: CacheViews, rows: int, kept: KeptInputs) -> list[Launch]:
        """Return the launches that advance the states of the delta nets by the rows of step[rows], from the kept inputs
        of a step of `rows` rows; rows with position < 0 are left out."""
        launches = []
        deltas = [layer.delta for layer in self.weights.layers if layer.delta]
        for net, (own, states) in enumerate(zip(deltas, cache.states, strict=True)):
            launches += self._recurrence(scratch, rows, own, states, *kept.views(net, rows))
        return launches

    def head(self, scratch: Scratch, rows: int, wanted: int, keep: int = 0) -> list[Launch]:
        """Return the launches of the head, as Plan.head."""
        normed = scratch.view("normed", wanted)
        norm = self._rms_norm(scratch, rows, wanted, "index", self.weights.output_norm, normed)
        return [norm, *self.logits(scratch, wanted)]

    def logits(self, scratch: Scratch, wanted: int) -> list[Launch]:
        """Return the launches that compute the logits of the normed rows."""
        head = self.weights.head
        assert head is not None  # steps end on the device with the last layer
        normed = scratch.view("normed", wanted)
        logits = scratch.view("logits", wanted)
        if isinstance(head, Linear):
            quantize = self._quantize(scratch, wanted, normed, head)
            return [*quantize, *self._matmul(scratch, wanted, head, logits, self.config.vocab)]
        turned, launches = self._turned(scratch, wanted, normed)
        return [*launches, *self.dense(head, wanted, turned, logits)]

    def _embed(self, scratch: Scratch, rows: int) -> list[Launch]:
        return self.embed_to(scratch, rows, scratch.view("x", rows)) if self.weights.embedding else []

    def embed_to(self, scratch: Scratch, rows: int, x: View) -> list[Launch]:
        """Return the launches that compute the embeddings x[rows, H] of the tokens in step[rows]."""
        if not self.config.hadamard:
            return self._embedded(scratch, rows, x)
        z = scratch.view("plain", rows, 4 * self.config.hidden)
        return [*self._embedded(scratch, rows, z), self._hadamard(rows, z, x, inverse=1)]

    def _input(
        self, scratch: Scratch, rows: int, layer: LayerWeights, inputs: tuple[View, View] | None = None
    ) -> tuple[View, View, View, list[Launch]]:
        """Return the views of QKV, of the delta rule's gates and of the output gate, and the launches that compute them
        from the norm of x. For a delta net the normed x is also kept in `plain`, from which the gates of the delta rule
        are computed. A single row uses one product for QKV and output gate. inputs: views of QKV and of the delta
        rule's gates in place of those of the scratch."""
        assert layer.gate is not None
        qkv = layer.qkv
        gate = layer.gate
        qkv_view, gates_view = inputs or (scratch.view("qkv", rows, 4 * qkv.outs), scratch.view("gates", rows))
        launches = self._normed(scratch, rows, layer.attn_norm, qkv, keep=layer.delta is not None)
        if layer.delta:  # first, while the weights of the larger product are prefetched
            plain = scratch.view("plain", rows, 4 * self.config.hidden)
            launches += self.dense(layer.delta.gates, rows, plain, gates_view)
        if rows == 1 < scratch.rows and layer.inputs and not inputs:  # needs a scratch of two rows for both results
            both = scratch.view("qkv", 1, 4 * (qkv.outs + gate.outs))
            launches += self._matmul(scratch, 1, layer.inputs, both, layer.inputs.outs)
            return both.part(0, 4 * qkv.outs), gates_view, both.part(4 * qkv.outs, 4 * gate.outs), launches
        gate_view = scratch.view("gate", rows, 4 * gate.outs)
        launches += self._matmul(scratch, rows, qkv, qkv_view, qkv.outs)
        launches += self._matmul(scratch, rows, gate, gate_view, gate.outs)
        return qkv_view, gates_view, gate_view, launches

    def _normed(self, scratch: Scratch, rows: int, gamma: View, linear: Linear, *, keep: bool) -> list[Launch]:
        """Return the launches of rms_norm of x, quantized for a product. keep: also store it unquantized in `plain`."""
        x = scratch.view("x", rows)
        plain = scratch.view("plain", rows, 4 * self.config.hidden)
        if self.config.hadamard:
            constants = {"NORM": 1, "KEEP": int(keep)}
            if fused := self._rotate_quantize(scratch, rows, x, gamma, plain, linear, constants):
                return [fused]
        elif not keep:
            return [self._norm_quantize(scratch, rows, x, gamma, linear)]
        norm = self._rms_norm(scratch, rows, rows, "row", gamma, plain)
        return [norm, *self._quantize(scratch, rows, plain, linear)]

    def _gated_attention(
        self,
        scratch: Scratch,
        cache: CacheViews,
        rows: int,
        layer: LayerWeights,
        caches: tuple[View, View],
        qkv: View,
        gate: View,
        decode: bool,
    ) -> list[Launch]:
        """Compute attention(q, k, v) * sigmoid(gate), quantized."""
        config = self.config
        heads = scratch.view("heads", rows, 4 * config.q_width)
        launches = self._attended(scratch, cache, rows, layer, qkv, caches, heads, decode)
        shape: ParamDict = {"rows": rows, "n_heads": config.n_heads, "head_dim": config.head_dim, "groups": 1}
        constants = {"NORM": 0, "ACT": SIGMOID}
        return launches + self._gated(scratch, shape, (heads, gate, layer.attn_norm), layer.attn_output, constants)

    def _recurrence(
        self, scratch: Scratch, rows: int, own: DeltaWeights, states: tuple[View, View], qkv: View, gates: View
    ) -> list[Launch]:
        """Compute heads = delta rule(conv(qkv)) and advance the states."""
        net = self.config.delta
        assert net is not None
        step = scratch.view("step", rows)
        mixed = scratch.view("mixed", rows)
        heads = scratch.view("heads", rows, 4 * net.value_width)
        prepare = self.launcher.prepare
        return [
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
        ]

    def _gated_heads(
        self, scratch: Scratch, rows: int, layer: LayerWeights, own: DeltaWeights, gate: View
    ) -> list[Launch]:
        """Compute norm(heads) * silu(gate), quantized."""
        net = self.config.delta
        assert net is not None
        heads = scratch.view("heads", rows, 4 * net.value_width)
        groups = net.key_heads if net.regrouped else 1
        shape: ParamDict = {"rows": rows, "n_heads": net.value_heads, "head_dim": net.value_dim, "groups": groups}
        return self._gated(scratch, shape, (heads, gate, own.norm), layer.attn_output, {"NORM": 1, "ACT": SILU})

    def _gated(
        self, scratch: Scratch, shape: ParamDict, views: tuple[View, ...], linear: Linear, constants: dict[str, int]
    ) -> list[Launch]:
        """Return the launches of gated_rms_norm of the views (x, gate, gamma), quantized for a product."""
        rows = int(shape["rows"])
        params = shape | {"eps": self.config.norm_eps}
        if self.config.hadamard and linear.width == linear.columns:
            signs = self.weights.signs[linear.columns]
            operands = (*views, signs, *self._quantized(scratch, rows, linear.width))
            values = params | {"block": self.config.hadamard}
            if fused := self._fused("gated_rotate_quantize", values, operands, constants | {"ABLOCK": self.ablock}):
                return [fused]
        plain = scratch.view("plain", rows, 4 * linear.columns)
        gated = self.launcher.prepare(CATALOGUE["gated_rms_norm"], params, (*views, plain), constants)
        return [gated, *self._quantize(scratch, rows, plain, linear)]

    def _feed_forward(self, scratch: Scratch, rows: int, layer: LayerWeights) -> list[Launch]:
        config = self.config
        down = layer.ffn_down
        if not config.hadamard:
            return super()._feed_forward(scratch, rows, layer)
        launches = self._normed(scratch, rows, layer.ffn_norm, layer.gate_up, keep=False)
        m = scratch.view("gate_up", rows, 4 * config.ffn)
        if product := self._matmul_glu(scratch, rows, m, layer):
            launches += [product, *self._quantize(scratch, rows, m, down)]
        else:
            gate_up = scratch.view("gate_up", rows)
            launches += self._matmul(scratch, rows, layer.gate_up, gate_up, layer.gate_up.outs)
            launches += self._gated_up(scratch, rows, gate_up, down)
        return launches + self._matmul(scratch, rows, down, scratch.view("x", rows), config.hidden, add=1)

    def _gated_up(self, scratch: Scratch, rows: int, gate_up: View, down: Linear) -> list[Launch]:
        """Return the launches of act(gate) * up, rotated and quantized."""
        config = self.config
        act = {"ACT": self.activation}
        shape: ParamDict = {"rows": rows, "width": config.ffn}
        if down.width == down.columns:
            views = (gate_up, self.weights.signs[config.ffn], *self._quantized(scratch, rows, down.width))
            values = shape | {"block": config.hadamard}
            if fused := self._fused("glu_rotate_quantize", values, views, act | {"ABLOCK": self.ablock}):
                return [fused]
        m = scratch.view("plain", rows, 4 * config.ffn)
        glu = self.launcher.prepare(CATALOGUE["glu"], shape, (gate_up, m), act)
        return [glu, *self._quantize(scratch, rows, m, down)]

    def _quantize(self, scratch: Scratch, rows: int, source: View, linear: Linear) -> list[Launch]:
        """Return the launches that quantize the input of a product, after a rotation if the weights are rotated."""
        if self.config.hadamard:
            gamma = self.weights.output_norm
            unused = scratch.view("turned", rows)
            constants = {"NORM": 0, "KEEP": 0}
            if fused := self._rotate_quantize(scratch, rows, source, gamma, unused, linear, constants):
                return [fused]
        turned, launches = self._turned(scratch, rows, source)
        return [*launches, self._norm_quantize(scratch, rows, turned, None, linear)]

    def _rotate_quantize(
        self,
        scratch: Scratch,
        rows: int,
        source: View,
        gamma: View,
        plain: View,
        linear: Linear,
        constants: dict[str, int],
    ) -> Launch | None:
        """Return the launch of norm_rotate_quantize; None if the device lacks it or columns are padded."""
        if linear.width != linear.columns:
            return None
        return self._fused(
            "norm_rotate_quantize",
            {"rows": rows, "width": linear.columns, "block": self.config.hadamard, "eps": self.config.norm_eps},
            (source, gamma, self.weights.signs[linear.columns], plain, *self._quantized(scratch, rows, linear.width)),
            constants | {"ABLOCK": self.ablock},
        )

    def _turned(self, scratch: Scratch, rows: int, source: View) -> tuple[View, list[Launch]]:
        """Return the input that a rotated matrix multiplies in place of `source`, and the launches that compute it."""
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
