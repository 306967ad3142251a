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
    "draft_stops": "Requests whose draft tokens did not pay.",
    "evictions": "Blocks of the prefix cache that were given to others.",
}
"""Help text of each number that only rises, by name."""

GAUGES: dict[str, str] = {
    "running": "Running requests.",
    "waiting": "Requests that wait for admission.",
    "cache_use": "Share of the KV cache that requests own, 0 to 1.",
    "cached_tokens": "Tokens in the prefix cache, those of running requests included.",
}
"""Help text of each number that rises and falls, by name."""


def zeros() -> dict[str, int]:
    """Return every counter at 0; counting under another name is then a KeyError."""
    return dict.fromkeys(COUNTERS, 0)
