"""Compute the bytes of weights on a device from their shapes; `upload` places the same arrays in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from bitnet_hal.device import DeviceInfo
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.types import DenseType
from bitnet_hal.rounding import ceil_div

from bitnet_core.formats.names import matrices
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import padded
from bitnet_core.plan.view_limits import view_limit

_WIDEST_BLOCK = 256
"""Columns per weight scale on the device if the file has one scale per row."""


def layer_bytes(config: ModelConfig, share: float = 1.0) -> int:
    """Return the bytes of the codes of all ternary matrices, as read by a decode step. share: part of the experts that
    is read."""
    return sum(
        int(rows * padded(columns) // 4 * (share if name.endswith("_exps") else 1.0))
        for name, (rows, columns) in matrices(config).items()
    )


def table_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of the tables that layers need: the embedding for the first layer, the head for the last."""
    embedding = () if config.layers_before else ("token_embd",)
    if config.layers_after or (config.tied_head and embedding):
        return embedding
    return (*embedding, "token_embd" if config.tied_head else "output")


def table_type(source: ModelSource, name: str) -> tuple[DenseType, int]:
    """Return the type of a dense table and the bytes of a row. The table is read only once, because that may convert
    it."""
    known = _table_types.setdefault(source, {})
    if name not in known:
        table = source.dense(name)
        known[name] = table.dtype, table.row_bytes
    return known[name]


_table_types: WeakKeyDictionary[ModelSource, dict[str, tuple[DenseType, int]]] = WeakKeyDictionary()
"""Types of tables and bytes of their rows, by source and name."""


def device_block(config: ModelConfig, block: int) -> int:
    """Return the columns per scale on the device; grouped activation scales need grouped weight scales."""
    return block or (_WIDEST_BLOCK if config.activation_group_size else 0)


def adjacent(info: DeviceInfo, width: int, rows: Sequence[int], blocks: Sequence[int]) -> bool:
    """Return True if matrices of one width fit in one binding, and the rows of the last are aligned for a separate
    view. blocks: columns per scale of each."""
    row = width // 4
    limit = view_limit(info)
    if len(set(blocks)) > 1 or 0 < limit < row * sum(rows):
        return False
    scales = 4 * (ceil_div(width, blocks[0]) if blocks[0] else 1)
    first = sum(rows[:-1])
    return not any(first * size % info.alignment for size in (row, scales))


def rotary_bytes(config: ModelConfig, info: DeviceInfo, positions: int) -> int:
    """Return the bytes of the rotary table. Raises UsageError if the device cannot bind it."""
    nbytes = 4 * config.head_dim * positions
    limit = view_limit(info)
    if 0 < limit < nbytes:
        fits = positions * limit // nbytes
        raise UsageError(
            f"the rotations of {positions:,} positions take {nbytes:,} bytes, and {info.request} "
            f"binds {limit:,} at most. Use a context of {fits:,} tokens or fewer"
        )
    return nbytes


def weight_bytes(source: ModelSource, config: ModelConfig | None = None) -> int:
    """Return the bytes of the matrices and tables of a model, or of the layers of `config`, on a device; scales and
    vectors are not counted (weight_sizes counts them)."""
    config = config or source.config
    return layer_bytes(config) + _table_bytes(source, config)


def _table_bytes(source: ModelSource, config: ModelConfig) -> int:
    names = table_names(config)
    if config.ternary_tables:
        return len(names) * config.vocab * padded(config.hidden) // 4
    return sum(source.dense(name).data.nbytes for name in names)
