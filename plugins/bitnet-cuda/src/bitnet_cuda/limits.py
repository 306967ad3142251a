"""Sizes of GPUs and steps on which the tunings of several modules depend."""

from __future__ import annotations

FULL_GPU = 100
"""The number of tiles that keeps a large GPU busy."""
MULTIPROCESSORS = 132
"""The multiprocessors of a GPU with warpgroup products: H100 and H200."""
MOST_SHARED = 227 << 10
"""The maximum bytes of shared memory of a block on such a GPU."""
BATCH_ROWS = 64
"""The maximum rows of a batch, whose products keep weights in registers; a step with more rows holds a prompt."""
MANY_OUTS = 8192
"""The number of weight rows above which even large tiles are enough to keep a GPU busy."""
LONG_ROWS = 4096
"""The number of columns from which norms and products divide a row differently."""
PERSISTENT = {"TILE_N": 1 << 20, "TILE_T": 1 << 20, "SPLITS": MULTIPROCESSORS}
"""The tile of kernels with one block per multiprocessor that takes one tile after the other."""
COPY_ALIGNMENT = 1024
"""The alignment in bytes of the tiles of bulk copies in shared memory."""


def attention_dims(*, wgmma: bool) -> tuple[int, ...]:
    """Return the head dimensions of the tensor-core kernels of attention.

    256 elements need more shared memory than GPUs without warpgroup products have.
    """
    return (64, 128, 256) if wgmma else (64, 128)
