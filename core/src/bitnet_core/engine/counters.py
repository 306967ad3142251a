"""Names of what an engine counts and measures: `Model.stats` and the server's metrics are made of these lists."""

from __future__ import annotations

COUNTERS: dict[str, str] = {
    "prompt_tokens": "Tokens of prompts, those that the cache knew included.",
    "generated_tokens": "Tokens generated.",
    "decoded_tokens": "Tokens generated in steps without prompts.",
    "prefix_queries": "Tokens of prompts looked up in the prefix cache.",
    "prefix_hits": "Tokens of prompts found in the prefix cache.",
    "preemptions": "Requests whose cache blocks were taken for others.",
    "draft_tokens": "Draft tokens that prompt lookup proposed.",
    "accepted_tokens": "Draft tokens that were accepted.",
    "evictions": "Blocks of the prefix cache that were given to others.",
}
"""Name -> explanation of each number that only rises."""

GAUGES: dict[str, str] = {
    "running": "Running requests.",
    "waiting": "Requests that wait for admission.",
    "cache_use": "Share of the key/value cache that requests own, 0 to 1.",
}
"""Name -> explanation of each number that rises and falls."""


def zeros() -> dict[str, int]:
    """Start every counter at 0. Counting under a name that is not in COUNTERS is a KeyError."""
    return dict.fromkeys(COUNTERS, 0)
