"""Which source a launch takes, and its constants."""

from __future__ import annotations

from bitnet_hal.plugin import Constants, KernelSpec, Params, Tuning

from bitnet_cuda import decode_tiles, delta_tiles, tensor_tiles
from bitnet_cuda.kernels.portable.tiles import select_tuning as portable


def select_tuning(spec: KernelSpec, constants: Constants, params: Params, *, tensor_cores: bool, wgmma: bool) -> Tuning:
    """Tuning of one launch; wgmma: the GPU has warpgroup products (compute capability 9.0)."""
    launch = spec.name, constants, params
    if delta := delta_tiles.select_tuning(*launch, tensor_cores=tensor_cores, wgmma=wgmma):
        return delta
    kernels = (decode_tiles.select_tuning, tensor_tiles.select_tuning) if tensor_cores else ()
    tiles = (tile(*launch, wgmma=wgmma) for tile in kernels)
    return next(filter(None, tiles), None) or portable(*launch, decode_tiles.BLOCKS)
