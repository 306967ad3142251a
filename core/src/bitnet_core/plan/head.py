"""The launches after the layers of a step: logits, and the choice of tokens."""

from __future__ import annotations

from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import ParamDict
from bitnet_hal.launcher import Launch

from bitnet_core.plan.device_weights import Dense, Linear
from bitnet_core.plan.linear import LinearLayers
from bitnet_core.plan.scratch import HISTORY, CacheViews, Scratch


class HeadLayers(LinearLayers):
    """A builder of the launches of the last norm, the output head, and the choice of tokens."""

    def head(self, scratch: Scratch, rows: int, wanted: int, keep: int = 0) -> list[Launch]:
        """Return the launches that compute the logits of the `wanted` rows numbered in the index buffer, of a step of
        `rows` rows. keep: number of largest logits that must be exact, 0 for all of them."""
        config = self.config
        head = self.weights.head
        assert head is not None  # only the device with the last layer computes logits
        normed = scratch.view("normed", wanted)
        logits = scratch.view("logits", wanted)
        norm = self.hidden(scratch, rows, wanted)
        if isinstance(head, Linear):
            quantize = self._norm_quantize(scratch, wanted, normed, None, head)
            return [norm, quantize, *self._matmul(scratch, wanted, head, logits, config.vocab)]
        if keep and (products := self._lm_head_int8(scratch, head, wanted, keep)):
            return [norm, *products]
        return [norm, *self.dense(head, wanted, normed, logits)]

    def hidden(self, scratch: Scratch, rows: int, wanted: int) -> Launch:
        """Return the launch that norms the last hidden states of the `wanted` rows numbered in the index buffer into
        the buffer `normed`, of a step of `rows` rows."""
        normed = scratch.view("normed", wanted)
        return self._rms_norm(scratch, rows, wanted, "index", self.weights.output_norm, normed)

    def _lm_head_int8(self, scratch: Scratch, head: Dense, wanted: int, keep: int) -> list[Launch]:
        """Return two launches: approximate logits from the int8 head, then exact ones for all that may be among the
        `keep` largest. [] if there is no int8 head or the device does not support such sizes."""
        config = self.config
        int8 = self.weights.lm_head_int8
        if int8 is None:
            return []
        normed = scratch.view("normed", wanted)
        logits = scratch.view("logits", wanted)
        bound = scratch.view("bound", wanted)
        shape: ParamDict = {"rows": wanted, "outs": config.vocab, "width": config.hidden, "stride": config.vocab}
        approx = self._fused("approx_logits", shape, (normed, int8.codes, int8.scale, int8.error, logits, bound), {})
        exact = self._fused(
            "refine_logits", shape | {"k": keep}, (normed, head.parts[0].table, int8.error, bound, logits), {}
        )
        return [approx, exact] if approx and exact else []

    def advance(self, scratch: Scratch, cache: CacheViews, rows: int) -> Launch:
        """Return the launch that chooses the greedy token of every row and appends it to the step buffer and the token
        ring."""
        index = scratch.view("index", rows)
        return self.launcher.prepare(
            CATALOGUE["argmax_advance"],
            self._choice(rows) | {"max_blocks": cache.max_blocks, "ring": HISTORY},
            (
                scratch.view("logits", rows),
                index,  # in place of a mask
                index,
                cache.tables,
                scratch.view("step", rows),
                scratch.view("history", rows),
            ),
            {"MASK": 0},
        )

    def shortlist(self, scratch: Scratch, rows: int, k: int, *, masked: bool = False) -> Launch:
        """Return the launch that lists the k largest logits and the log-sum-exp of every row (optional kernel
        top_k)."""
        return self.launcher.prepare(
            CATALOGUE["top_k"],
            self._choice(rows) | {"k": k},
            (
                scratch.view("logits", rows),
                scratch.view("mask", rows) if masked else scratch.view("index", rows),
                *scratch.lists(rows, k),
            ),
            {"MASK": int(masked)},
        )

    def _choice(self, rows: int) -> ParamDict:
        return {"rows": rows, "vocab": self.config.tokens, "stride": self.config.vocab}
