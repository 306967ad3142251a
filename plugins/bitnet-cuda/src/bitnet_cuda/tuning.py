"""The choice of a launch's source file and constants."""

from __future__ import annotations

from bitnet_hal.plugin import FEW_ROWS, Constants, KernelSpec, Params, Tuning

from bitnet_cuda import decode_tiles, delta_tiles, other_tiles, tensor_tiles
from bitnet_cuda.kernels.portable.tiles import attention_split
from bitnet_cuda.kernels.portable.tiles import select_tuning as portable


def select_tuning(spec: KernelSpec, constants: Constants, params: Params, *, tensor_cores: bool, wgmma: bool) -> Tuning:
    """Return the tuning of a launch. wgmma: the GPU has warpgroup products (compute capability 9.0).

    Raises UnsupportedError if other kernels must serve the launch.
    """
    name = spec.name
    if name == "attention" and int(params["rows"]) <= FEW_ROWS:
        return attention_split(params, decode_tiles.BLOCKS)
    tuning = delta_tiles.select_tuning(name, constants, params, tensor_cores=tensor_cores, wgmma=wgmma)
    if tuning is None and tensor_cores:
        tuning = decode_tiles.select_tuning(name, constants, params, wgmma=wgmma)
    if tuning is None and tensor_cores:
        tuning = tensor_tiles.select_tuning(name, constants, params, wgmma=wgmma)
    return tuning or portable(name, constants, params, decode_tiles.BLOCKS)


def candidate_tunings(
    spec: KernelSpec, constants: Constants, params: Params, *, tensor_cores: bool, wgmma: bool
) -> list[Tuning]:
    """Return the result of `select_tuning`, then others that `bitnet tune` measures."""
    selected = select_tuning(spec, constants, params, tensor_cores=tensor_cores, wgmma=wgmma)
    return [selected, *other_tiles.others(spec.name, selected, constants, params)]
