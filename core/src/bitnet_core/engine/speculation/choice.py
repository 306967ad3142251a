"""Choose a drafter by the options, the model and the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.errors import UsageError
from bitnet_hal.tuning.query import FEW_ROWS

from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.speculation.drafter import Drafter
from bitnet_core.engine.speculation.measurements import MAX_DRAFT
from bitnet_core.engine.speculation.prediction import PredictionDrafter
from bitnet_core.engine.speculation.prompt_lookup import PromptLookup
from bitnet_core.model.config import ModelConfig
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.kernels import invariant_rows

log = logging.getLogger(__name__)

_MOST_ROWS = 64
"""Largest number of rows of a step with draft tokens, whose logits take memory (33 MB for 2B-4T)."""

Kind = Literal["off", "lookup", "mtp", "draft"]


class Speculation:
    """The speculation of an engine. draft_model: loads the draft model, None if there is none. kind: the kind in use;
    drafter: None before `load`; off: the reason why draft tokens are not used although the options allow them, "" if
    there is none. spares: number of requests whose delta net states can be copied for a step. devices: number of
    devices that the layers are on.

    Raises UsageError if the option `speculate` needs a head or a draft model that is missing, or leaves the draft model
    unused.
    """

    def __init__(
        self, options: EngineOptions, config: ModelConfig, draft_model: Callable[[], Drafter] | None = None
    ) -> None:
        self.kind = _kind_of(options, config, draft_model is not None)
        self.drafter: Drafter | None = None
        self.off = ""
        self.spares = 0
        self.devices = 1
        self._options = options
        self._config = config
        self._draft_model = draft_model
        self._asked = draft_model is not None or options.speculate not in ("auto", "off")

    def check(self, info: DeviceInfo) -> None:
        """Raise UsageError if the user asks for speculation, and steps on the device cannot verify draft tokens."""
        reason = self._refusal(info)
        if reason and self._asked:
            raise UsageError(f"speculation ({self.kind}) was requested, but {reason}")

    def load(self, runner: Callable[[], Runner]) -> None:
        """Create the drafter. runner: returns the runner in use."""
        if self.kind == "mtp":
            self.drafter = PredictionDrafter(runner)
        elif self.kind != "off":
            self.drafter = self._draft_model() if self._draft_model else PromptLookup()

    def rows(self, info: DeviceInfo, *, group_scales: bool) -> int:
        """Return the maximum rows of a step that verifies draft tokens on the device; 0 if it cannot, or if there is no
        speculation. Logs the reason once. group_scales: as in invariant_rows."""
        if self.kind == "off":
            return 0
        reason = self._refusal(info)
        if reason and reason != self.off:
            log.log(logging.WARNING if self._asked else logging.INFO, "speculation (%s) is off: %s", self.kind, reason)
        self.off = reason
        return 0 if reason else invariant_rows(self._config, info, group_scales=group_scales)

    def figures(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """Return the kind, the reason why it is off, and the counters of draft tokens."""
        drafted = counts["draft_tokens"]
        accepted = counts["accepted_tokens"]
        return {
            "kind": self.kind,
            "off": self.off,
            "draft_tokens": drafted,
            "accepted_tokens": accepted,
            "acceptance": accepted / max(1, drafted),
        }

    def close(self) -> None:
        """Close the drafter; may be called twice."""
        if self.drafter is not None:
            self.drafter.close()

    def _refusal(self, info: DeviceInfo) -> str:
        """Return the reason why steps on a device cannot verify draft tokens of the model, "" if they can."""
        if self.devices > 1:
            return "draft tokens are verified on one device, and the layers are on several"
        reason = refusal(self._options, self._config, info)
        if not reason and self._config.delta and not self.spares:
            return "the cache has no room for a copy of a request's states: it needs a larger kv_cache_size"
        return reason


def _kind_of(options: EngineOptions, config: ModelConfig, has_draft_model: bool) -> Kind:
    kind = options.speculate
    if has_draft_model and kind not in ("auto", "draft"):
        raise UsageError(f'a draft model is given, but speculate is "{kind}": use auto or draft, or no draft model')
    if kind == "draft" and not has_draft_model:
        raise UsageError('speculate is "draft", but there is no draft model: name one with draft_model (--draft-model)')
    if kind == "mtp" and not config.prediction_head:
        raise UsageError(
            'speculate is "mtp", but the model has no head for multi-token prediction that can be used: use lookup or '
            "draft"
        )
    if kind == "auto":
        return "draft" if has_draft_model else "lookup"
    return kind


def refusal(options: EngineOptions, config: ModelConfig, info: DeviceInfo) -> str:
    """Return the reason why steps on a device cannot verify draft tokens of a model, "" if they can."""
    if options.deterministic or "batch-invariant" in info.features:
        if invariant_rows(config, info, group_scales=True) > 1:
            return ""
        return f"{info.request} keeps no two rows of a step batch-invariant (bitnet devices -v)"
    return (
        f"{info.request} is not batch-invariant: the result of a row depends on the number of rows; with the option "
        "deterministic it does not on most devices"
    )


def verify_rows(options: EngineOptions, config: ModelConfig, info: DeviceInfo, sequences: int, chunk: int) -> int:
    """Return the maximum rows of a step that verifies draft tokens; 0 if draft tokens cannot be verified."""
    if options.speculate == "off" or refusal(options, config, info):
        return 0
    return min(invariant_rows(config, info, group_scales=True), chunk, rows_that_pay(config, info, sequences))


def rows_that_pay(config: ModelConfig, info: DeviceInfo, sequences: int) -> int:
    """Return the rows with draft tokens up to which a step can pay on a device: the longest draft of each request, at
    most _MOST_ROWS, but one row of each request. On a GPU FEW_ROWS, if activations are scaled in groups: larger steps
    of such models were slower than those without draft tokens (docs/speculation.md)."""
    if config.activation_group_size and info.type in (DeviceType.GPU, DeviceType.INTEGRATED):
        return FEW_ROWS
    return max(sequences, min(sequences * (1 + MAX_DRAFT), _MOST_ROWS))
