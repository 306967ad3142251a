"""Names and help texts of the engine's counters and gauges, for `Model.stats` and the server's metrics."""

from __future__ import annotations

COUNTERS: dict[str, str] = {
    "prompt_tokens": "Tokens of prompts, cached ones included.",
    "generated_tokens": "Tokens generated.",
    "decoded_tokens": "Tokens generated in steps without prompts.",
    "prefix_queries": "Tokens of prompts looked up in the prefix cache.",
    "prefix_hits": "Tokens of prompts found in the prefix cache.",
    "preemptions": "Preemptions: requests whose cache blocks were given to others.",
    "draft_steps": "Steps that verified draft tokens.",
    "draft_tokens": "Draft tokens that were verified.",
    "accepted_tokens": "Draft tokens that were accepted.",
    "draft_stops": "Requests for which draft tokens were stopped because they did not pay.",
    "evictions": "Blocks of the prefix cache that were given to others.",
}
"""Help text of each counter by name."""

GAUGES: dict[str, str] = {
    "running": "Running requests.",
    "waiting": "Requests that wait for admission.",
    "cache_use": "Share of the KV cache that requests own, 0 to 1.",
    "cached_tokens": "Tokens in the prefix cache, those of running requests included.",
}
"""Help text of each gauge by name."""


def zeros() -> dict[str, int]:
    """Return all counters at 0; adding to an unknown name then raises KeyError."""
    return dict.fromkeys(COUNTERS, 0)
