"""The positions of state checkpoints, at which delta net states are kept for later requests: all are ends of full
blocks.

A later turn of a conversation continues after an earlier prompt or answer, or somewhere in an edited message. So states
are kept near the end of each prompt, at the last full block of each answer, and along long prompts.
"""

from __future__ import annotations

from bitnet_hal.kernels.catalogue import KV_BLOCK

from bitnet_core.engine.kv_cache.block_pool import block_hashes
from bitnet_core.engine.kv_cache.checkpoints import StateCheckpoints
from bitnet_core.engine.request.request import Request

_GENERATION_PROMPT = 16
"""Tokens at the end of a prompt that the next turn may not have: the template's beginning of the answer, such as
<think>."""

_SPACING = 1024
"""Minimum tokens between two checkpoints of one prompt, except the last."""


def prompt_checkpoint(prompt_tokens: int, chunk: int) -> int:
    """Return the position of the checkpoint near the end of a prompt: 0 if the prompt has no full block.

    A prompt of whole blocks that fits in a step of `chunk` rows is computed in one piece. If the same prompt is sent
    again, it finds no checkpoint, because its last token has to be computed.
    """
    blocks = prompt_tokens // KV_BLOCK * KV_BLOCK
    if blocks == prompt_tokens <= chunk:
        return blocks
    return (prompt_tokens - _GENERATION_PROMPT) // KV_BLOCK * KV_BLOCK or blocks


def rows_to_checkpoint(request: Request, count: int, chunk: int) -> int:
    """Return how many of the next `count` rows to compute, so that the step ends at a possible checkpoint."""
    start = request.computed
    if start < (end := prompt_checkpoint(request.prompt_tokens, chunk)):
        count = min(count, end - start)
    if count == request.pending:
        return count
    whole = (start + count) // KV_BLOCK * KV_BLOCK
    return whole - start if whole > start else count


def rows_to_block_end(request: Request) -> int:
    """Return the number of rows up to the end of the block of the next row."""
    return KV_BLOCK - request.computed % KV_BLOCK


def keeps_answers(checkpoints: StateCheckpoints, running: int) -> bool:
    """Return True if there are enough checkpoints for the prompt and the answer of each running request. If not, only
    prompts get them: these also serve turns without the answer."""
    return 2 * running <= checkpoints.capacity


def keep_state(checkpoints: StateCheckpoints, request: Request, running: int) -> None:
    """Keep the states of a request whose last row was the end of a block, if a later request may start here.

    running: number of requests. An answer keeps its last full block only.
    """
    at = request.computed
    if at % KV_BLOCK or not checkpoints.capacity:
        return
    block_hash = block_hashes(request, at)[-1]
    if at > request.prompt_tokens:
        if keeps_answers(checkpoints, running):
            checkpoints.save(block_hash, request.req_index, request.answer_checkpoint)
            request.answer_checkpoint = block_hash
        return
    spacing = max(_SPACING, request.prompt_tokens // max(1, checkpoints.capacity // 2))
    if request.prompt_tokens - at < 2 * KV_BLOCK or at >= request.prompt_checkpoint + spacing:
        checkpoints.save(block_hash, request.req_index)
        request.prompt_checkpoint = at
