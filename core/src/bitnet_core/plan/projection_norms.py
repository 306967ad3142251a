"""The plan of models with a norm of the input of every matrix (BitNet-embedding), made of base kernels.

The norms of attn_output and ffn_down replace the sub-norms of other models. Queries, keys and values share the normed
input of attention, but each applies its own norm to it and quantizes the result; so do gate and up.
"""

from __future__ import annotations

from collections.abc import Sequence

from bitnet_hal.device import View
from bitnet_hal.launcher import Launch

from bitnet_core.plan.device_weights import LayerWeights, Projection
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.scratch import Scratch


class ProjectionNormPlan(Plan):
    """The Plan of a model whose matrices have norms of their inputs."""

    left_out = frozenset({"decoder_layer", "norm_matmul_glu", "matmul_ternary_glu"})

    def _qkv(self, scratch: Scratch, rows: int, layer: LayerWeights, qkv: View) -> list[Launch]:
        return self._projected(scratch, rows, layer.attn_norm, layer.qkv_projections, layer.qkv.outs, qkv)

    def _gate_up(self, scratch: Scratch, rows: int, layer: LayerWeights, gate_up: View) -> list[Launch]:
        return self._projected(scratch, rows, layer.ffn_norm, layer.gate_up_projections, layer.gate_up.outs, gate_up)

    def _projected(
        self, scratch: Scratch, rows: int, gamma: View, projections: Sequence[Projection], outs: int, y: View
    ) -> list[Launch]:
        """Compute y[rows, outs]: for each matrix, its product with the quantized norm of the norm of x."""
        plain = scratch.view("plain", rows)
        launches = [self._rms_norm(scratch, rows, rows, "row", gamma, plain)]
        for projection in projections:
            matrix = projection.matrix
            launches.append(self._norm_quantize(scratch, rows, plain, projection.gamma, matrix))
            launches += self._matmul(scratch, rows, matrix, y, outs)
        return launches
