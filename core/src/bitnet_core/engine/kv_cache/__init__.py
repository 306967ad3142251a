"""The paged KV cache: buffers, block pool, state checkpoints."""
