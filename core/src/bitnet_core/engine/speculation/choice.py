"""The choice of a kind of speculation by the options, the model and the device."""

from __future__ import annotations

from typing import Literal

from bitnet_hal.device import DeviceInfo
from bitnet_hal.errors import UsageError

from bitnet_core.model.config import ModelConfig
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.kernels import invariant_rows

Speculation = Literal["off", "lookup", "mtp", "draft"]


def speculation_of(options: EngineOptions, has_draft_model: bool) -> Speculation:
    """Return the kind of speculation that the option `speculate` asks for. Raises UsageError if it needs what is not
    there, or leaves the draft model unused."""
    kind = options.speculate
    if has_draft_model and kind not in ("auto", "draft"):
        raise UsageError(f'a draft model is given, but speculate is "{kind}": use auto or draft, or no draft model')
    if kind == "draft" and not has_draft_model:
        raise UsageError('speculate is "draft", but there is no draft model: name one with draft_model (--draft-model)')
    if kind == "mtp":
        raise UsageError('speculate is "mtp", but this version reads no MTP heads: use lookup or draft')
    if kind == "auto":
        return "draft" if has_draft_model else "lookup"
    return kind


def refusal(options: EngineOptions, config: ModelConfig, info: DeviceInfo) -> str:
    """Return the reason why steps on a device cannot verify draft tokens of a model, "" if they can."""
    if config.delta:
        return "the delta nets of this model keep states, which cannot be rolled back when a draft token is rejected"
    if options.deterministic or "batch-invariant" in info.features:
        if invariant_rows(config, info, group_scales=True) > 1:
            return ""
        return f"{info.request} keeps no two rows of a step batch-invariant (bitnet devices -v)"
    return (
        f"{info.request} is not batch-invariant: the result of a row depends on the number of rows; with the option "
        "deterministic it does not on most devices"
    )
