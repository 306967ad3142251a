"""Tiers and categories of the kit's rules, as pytest markers: `pytest -m tier2`, `-m "accuracy and not tier4"`."""

from __future__ import annotations

TIERS = {
    "tier1": "needs no device, only the plugin",
    "tier2": "a short check of a device",
    "tier3": "every kernel, call and model on a device",
    "tier4": "a measurement",
}
CATEGORIES = {
    "availability": "the plugin and its devices are found and described",
    "functionality": "calls behave as the contract specifies",
    "accuracy": "results match the reference",
    "performance": "time",
    "resource": "memory is allocated, isolated and freed",
    "fallback": "invalid or failing calls raise the documented error, and the device still works",
}
MARKERS: dict[str, tuple[str, str]] = {
    "PluginRules": ("tier1", "availability"),
    "DeviceRules": ("tier2", "availability"),
    "ErrorRules": ("tier2", "fallback"),
    "KernelRules": ("tier3", "accuracy"),
    "MemoryRules": ("tier3", "resource"),
    "RecordingRules": ("tier3", "functionality"),
    "FeatureRules": ("tier3", "functionality"),
    "LivenessRules": ("tier3", "functionality"),
    "InvarianceRules": ("tier3", "accuracy"),
    "ModelRules": ("tier3", "accuracy"),
    "NoModelRules": ("tier3", "accuracy"),
    "SpeedRules": ("tier4", "performance"),
}
"""(tier, category) of each class of rules."""
