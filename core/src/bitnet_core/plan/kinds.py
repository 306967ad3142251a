"""Choose the plan class of a model."""

from __future__ import annotations

from bitnet_core.model.config import ModelConfig
from bitnet_core.plan.experts import ExpertPlan
from bitnet_core.plan.hybrid import HybridPlan
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.norm_after_rope import NormAfterRopePlan
from bitnet_core.plan.projection_norms import ProjectionNormPlan


def plan_class(config: ModelConfig) -> type[Plan]:
    """Return the class that builds the launches of the model."""
    if config.delta:
        return HybridPlan
    if config.experts:
        return ExpertPlan
    if config.projection_norms:
        return ProjectionNormPlan
    return NormAfterRopePlan if config.qk_norm_after_rope else Plan
