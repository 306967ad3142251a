"""The plan of models that norm each query and key head after RoPE (HunYuan), made of base kernels.

A rotation keeps the length of a head, so the norm without its weights can be computed before it. The weights have to be
applied afterwards, because RoPE mixes the elements of a pair. Scores depend only on the products of both heads'
weights, so rotated queries are multiplied by these products, and keys by nothing:

    (g_q rope(n(q))) . (g_k rope(n(k))) = (g_q g_k rope(n(q))) . rope(n(k)),    n(h) = h / sqrt(mean(h^2) + eps)

`rms_norm` with an eps of 2^40 multiplies by gamma / 2^20, exact up to one rounding: the mean square of a normed head
vanishes when it is added to that eps in f32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import View
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launch

from bitnet_core.plan.device_weights import LayerWeights
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.prediction_weights import PredictionWeights
from bitnet_core.plan.scratch import CacheViews, Scratch

_EPS = 2.0**40
_GAIN = np.float32(2.0**20)


def query_gain(q_gamma: npt.NDArray[np.float32], k_gamma: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return f32[head_dim], the gamma of the launch that multiplies rotated queries by both norms' weights."""
    return q_gamma * k_gamma * _GAIN


class NormAfterRopePlan(Plan):
    """The Plan of a model whose query and key heads are normed after RoPE; q_norm and k_norm of its layers are 1."""

    left_out = frozenset({"rope_attention", "rope_attention_mixed", "decoder_layer"})

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
        """Compute heads[rows, q_width] from qkv in three launches; qkv receives the queries."""
        assert isinstance(layer, LayerWeights)  # no such model has a prediction head
        assert layer.q_gain is not None
        config = self.config
        queries = scratch.view("queries", rows)
        multiplied = qkv.part(0, queries.nbytes)
        multiply = self.launcher.prepare(
            CATALOGUE["rms_norm"],
            {"rows": rows * config.n_heads, "width": config.head_dim, "eps": _EPS},
            (queries, scratch.view("head", rows), layer.q_gain, multiplied),
        )
        return [
            self._rotate(scratch, rows, layer, qkv, queries, caches),
            multiply,
            self._attention_of(scratch, cache, rows, multiplied, caches, heads),
        ]
