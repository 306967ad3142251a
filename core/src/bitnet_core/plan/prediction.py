"""The plan of a multi-token prediction head: one gated attention layer of dense products, and the model's output head.

With h the trunk's rows after output_norm, row t is of token t + 1:
    x[t] = pair [norm(embed(token[t + 1])) | norm(h[t])];  y = layer(x);  g = norm(y);  head(g[t]) predicts token t + 2.
The next draft token takes g as h. Source: llama.cpp, src/models/qwen35.cpp (graph_mtp).

Inputs of a product that come from two launches are joined by embed_rows, with the buffer of both as its table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import DeviceInfo, View
from bitnet_hal.kernels.catalogue import CATALOGUE, DENSE_TYPES, SIGMOID, SILU, STEP_FIELDS
from bitnet_hal.kernels.spec import ParamDict
from bitnet_hal.launcher import Launch

from bitnet_core.model.config import ModelConfig
from bitnet_core.plan.device_weights import Dense
from bitnet_core.plan.hybrid import HybridPlan
from bitnet_core.plan.pool import pooled
from bitnet_core.plan.prediction_weights import PredictionWeights
from bitnet_core.plan.scratch import CacheViews, Scratch, scratch_bytes

_F32 = DENSE_TYPES.index("f32")

WAITING_ROWS = 8
"""Maximum waiting rows of a request: those of a step that verified draft tokens."""

_MOST_ROWS = 256
"""Maximum rows of a step of the head; prompts take several such steps."""


def prediction_sizes(chunk: int, sequences: int) -> tuple[int, int]:
    """Return the maximum rows of a step of the head, and the maximum number of requests with drafts at the same time.
    chunk: rows of a prompt step of the trunk."""
    wanted = min(sequences, WAITING_ROWS)
    return max(min(chunk, _MOST_ROWS), wanted * WAITING_ROWS), wanted


def prediction_scratch(config: ModelConfig, info: DeviceInfo, chunk: int, sequences: int) -> int:
    """Return the bytes of the head's buffers without its weights and its layer of the cache."""
    rows, wanted = prediction_sizes(chunk, sequences)
    waiting = pooled(4 * sequences * WAITING_ROWS * config.hidden)
    return scratch_bytes(config, info, rows, wanted, prediction_row_bytes(config)) + waiting


def _inner(config: ModelConfig) -> int:
    """Return the columns of the wider input of a product that is added to the residual."""
    return max(config.q_width, config.ffn)


def prediction_row_bytes(config: ModelConfig) -> dict[str, int]:
    """Return the bytes per row of the buffers that a step's scratch does not have.

    pair, normed_pair: the embeddings of all rows, followed by all hidden rows. residual: all rows of x, followed by the
    inputs of the product that is added. joined: concatenations of two such rows. The others hold row indices.
    """
    hidden = config.hidden
    pieces = {name: sum(widths) // _piece(widths) for name, widths in _joins(config).items()}
    return {
        "pair": 8 * hidden,
        "normed_pair": 8 * hidden,
        "residual": 4 * (hidden + _inner(config)),
        "joined": 4 * (hidden + max(hidden, _inner(config))),
        "picked": 4,
        **{name: 4 * STEP_FIELDS * count for name, count in pieces.items()},
    }


def _joins(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the widths of the two inputs that are concatenated, by the buffer with their row indices."""
    hidden = config.hidden
    return {"join_pair": (hidden, hidden), "join_heads": (config.q_width, hidden), "join_ffn": (config.ffn, hidden)}


def _piece(widths: Sequence[int]) -> int:
    return math.gcd(*widths)


def join_table(widths: tuple[int, int], rows: int, *, swapped: bool) -> npt.NDArray[np.int32]:
    """Return the step rows i32[n, 4] with which embed_rows concatenates `rows` rows of two buffers, which it reads as
    one table: the piece of the first buffer comes first, or last if swapped."""
    piece = _piece(widths)
    counts = [width // piece for width in widths]
    starts = (counts[1] * rows, 0) if swapped else (0, counts[0] * rows)
    row = np.arange(rows)[:, None]
    parts = [start + row * count + np.arange(count) for start, count in zip(starts, counts, strict=True)]
    table = np.zeros((rows * sum(counts), STEP_FIELDS), np.int32)
    table[:, 0] = np.concatenate(parts, axis=1).reshape(-1)
    return table


class PredictionPlan:
    """A builder of the launches of the prediction head `weights`."""

    def __init__(self, trunk: HybridPlan, weights: PredictionWeights) -> None:
        self.trunk = trunk
        self.weights = weights
        self.config = trunk.config
        self._prepare = trunk.launcher.prepare

    def prepare_scratch(self, scratch: Scratch) -> None:
        """Upload the row indices of the inputs that are concatenated."""
        for name, widths in _joins(self.config).items():
            scratch.upload(name, join_table(widths, scratch.rows, swapped=name != "join_pair"))

    def hidden(self, scratch: Scratch, first: int, rows: int) -> View:
        """Return the view of the hidden rows first..first + rows - 1 of a step, for the caller to fill."""
        row = 4 * self.config.hidden
        return scratch.view("pair", scratch.rows).part((scratch.rows + first) * row, rows * row)

    def pick_hidden(self, scratch: Scratch, x: View, rows: int) -> Launch:
        """Return the launch that copies the rows of x listed in the buffer `picked` to the first `rows` hidden rows."""
        return self._norm(x, scratch.view("picked", rows), rows, self.trunk.weights.output_norm, self._h(scratch, rows))

    def layer(self, scratch: Scratch, cache: CacheViews, rows: int) -> list[Launch]:
        """Return the launches that compute y[rows, H] in `residual` from step[rows] and the hidden rows, and store keys
        and values in the last layer of the cache."""
        own = self.weights
        config = self.config
        every = scratch.view("row", rows)
        x = scratch.view("residual", rows, 4 * config.hidden)
        plain = scratch.view("plain", rows, 4 * config.hidden)
        joined = scratch.view("joined", rows, 8 * config.hidden)
        width = 4 * config.hidden
        normed = scratch.view("normed_pair", scratch.rows)
        embedded = scratch.view("pair", rows, width)
        return [
            *self._embed(scratch, rows, embedded),
            self._norm(embedded, every, rows, own.embedding_norm, normed.part(0, rows * width)),
            self._norm(
                self._h(scratch, rows), every, rows, own.hidden_norm, normed.part(scratch.rows * width, rows * width)
            ),
            self._join(scratch, rows, "join_pair", normed, joined),
            *self.trunk.dense(own.pair, rows, joined, x),
            self._norm(x, every, rows, own.attn_norm, plain),
            *self._attention(scratch, cache, rows, plain),
            *self._added(scratch, rows, "join_heads", own.output, x),
            self._norm(x, every, rows, own.ffn_norm, plain),
            *self.trunk.dense(own.gate_up, rows, plain, scratch.view("gate_up", rows)),
            self._prepare(
                CATALOGUE["glu"],
                {"rows": rows, "width": config.ffn},
                (scratch.view("gate_up", rows), self._inner_view(scratch, rows, config.ffn)),
                {"ACT": SILU},
            ),
            *self._added(scratch, rows, "join_ffn", own.down, x),
        ]

    def head(self, scratch: Scratch, rows: int, wanted: int) -> list[Launch]:
        """Return the launches that compute g = norm(y) in `normed` and the logits of the `wanted` rows numbered in the
        index buffer, of a step of `rows` rows."""
        y = scratch.view("residual", rows, 4 * self.config.hidden)
        normed = scratch.view("normed", wanted)
        gamma = self.weights.norm or self.trunk.weights.output_norm
        norm = self._norm(y, scratch.view("index", wanted), wanted, gamma, normed)
        if self.weights.head:
            return [norm, *self.trunk.dense(self.weights.head, wanted, normed, scratch.view("logits", wanted))]
        return [norm, *self.trunk.logits(scratch, wanted)]

    def _embed(self, scratch: Scratch, rows: int, x: View) -> list[Launch]:
        if self.weights.embedding is None:
            return self.trunk.embed_to(scratch, rows, x)
        table = self.weights.embedding
        return [
            self._prepare(
                CATALOGUE["embed_rows"],
                {"rows": rows, "hidden": self.config.hidden, "first": part.first, "count": part.count},
                (part.table, scratch.view("step", rows), x),
                {"DTYPE": table.dtype},
            )
            for part in table.parts
        ]

    def _attention(self, scratch: Scratch, cache: CacheViews, rows: int, x: View) -> list[Launch]:
        """Compute attention(q, k, v) * sigmoid(gate) as the second half of `residual`."""
        own = self.weights
        config = self.config
        qkv = scratch.view("qkv", rows, 4 * own.qkv.rows)
        gate = scratch.view("gate", rows, 4 * own.gate.rows)
        heads = scratch.view("heads", rows, 4 * config.q_width)
        shape: ParamDict = {"rows": rows, "n_heads": config.n_heads, "head_dim": config.head_dim, "groups": 1}
        inner = self._inner_view(scratch, rows, config.q_width)
        return [
            *self.trunk.dense(own.qkv, rows, x, qkv),
            *self.trunk.dense(own.gate, rows, x, gate),
            *self.trunk.attend(scratch, cache, rows, own, qkv, (cache.keys[-1], cache.values[-1]), heads),
            self._prepare(
                CATALOGUE["gated_rms_norm"],
                shape | {"eps": config.norm_eps},
                (heads, gate, own.attn_norm, inner),
                {"NORM": 0, "ACT": SIGMOID},
            ),
        ]

    def _added(self, scratch: Scratch, rows: int, name: str, matrix: Dense, x: View) -> list[Launch]:
        """Compute x += matrix (second half of `residual`)."""
        joined = scratch.view("joined", rows, 4 * matrix.columns)
        table = scratch.view("residual", scratch.rows, 4 * (matrix.columns))
        return [self._join(scratch, rows, name, table, joined), *self.trunk.dense(matrix, rows, joined, x)]

    def _inner_view(self, scratch: Scratch, rows: int, width: int) -> View:
        hidden = 4 * self.config.hidden
        return scratch.view("residual", scratch.rows).part(scratch.rows * hidden, rows * 4 * width)

    def _h(self, scratch: Scratch, rows: int) -> View:
        return self.hidden(scratch, 0, rows)

    def _join(self, scratch: Scratch, rows: int, name: str, table: View, joined: View) -> Launch:
        widths = _joins(self.config)[name]
        piece = _piece(widths)
        return self._prepare(
            CATALOGUE["embed_rows"],
            {"rows": rows * sum(widths) // piece, "hidden": piece, "first": 0, "count": table.nbytes // (4 * piece)},
            (table, scratch.view(name, rows), joined),
            {"DTYPE": _F32},
        )

    def _norm(self, x: View, index: View, rows: int, gamma: View, y: View) -> Launch:
        return self._prepare(
            CATALOGUE["rms_norm"],
            {"rows": rows, "width": self.config.hidden, "eps": self.config.norm_eps},
            (x, index, gamma, y),
        )
