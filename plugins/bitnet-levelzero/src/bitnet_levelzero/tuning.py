"""Which of the programs in the wheel a launch uses. A program has no shape built in, so that there are few of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal.device import Tuning
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.kernels.spec import KernelSpec

FEW_ROWS = 8
"""Up to this many rows the weights are streamed; above, tiles in local memory pay."""
HEAD_SPANS = ((64, 64, 1), (128, 128, 1), (256, 128, 2), (1024, 128, 8))
"""Heads of up to so many elements: work-items that share them out, and elements of each."""

Constants = Mapping[str, int]
Params = Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What is known of a family of Intel GPUs.

    name: Intel's. simd: sizes of its subgroups. slm: bytes of local memory a group may have. dot: it has dp4a, which
    Intel's compiler finds in the products' sums. dpas: it has matrix engines, which no program uses yet.
    """

    name: str
    simd: tuple[int, ...]
    slm: int = 65536
    dot: bool = True
    dpas: bool = False


ARCHITECTURES: dict[int, Architecture] = {
    0x4C: Architecture("Xe-LP (Rocket Lake)", (8, 16, 32)),
    0x9A: Architecture("Xe-LP (Tiger Lake)", (8, 16, 32)),
    0x46: Architecture("Xe-LP (Alder Lake)", (8, 16, 32)),
    0xA7: Architecture("Xe-LP (Raptor Lake)", (8, 16, 32)),
    0x49: Architecture("Xe-LP (DG1)", (8, 16, 32)),
    0x4F: Architecture("Xe-HPG (Arc A)", (8, 16, 32), dpas=True),
    0x56: Architecture("Xe-HPG (Arc A)", (8, 16, 32), dpas=True),
    0x7D: Architecture("Xe-LPG (Meteor Lake, Arrow Lake)", (8, 16, 32)),
    0x64: Architecture("Xe2 (Lunar Lake)", (16, 32), 131072, dpas=True),
    0xE2: Architecture("Xe2 (Arc B)", (16, 32), 131072, dpas=True),
}
"""By the upper byte of the PCI device number; others run the same programs."""


def _tile(tile_n: int, tile_t: int) -> Constants:
    return {"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}


def _dense(tile_t: int, aligned: int) -> Tuning:
    tile = {"TILE_N": 32, "TILE_T": tile_t}
    return Tuning(tile, private={"GROUP": 128, "LANES": 8, "ROWS": 2, "ALIGNED": aligned})


def _attention(spread: int, owned: int) -> Tuning:
    private = {"GROUP": 128, "LANES": 8, "CHUNK": 256, "SPREAD": spread, "OWNED": owned}
    return Tuning({"TILE_N": 1, "TILE_T": 1, "SPLITS": 1}, private=private)


_TILED = Tuning(_tile(64, 64), "tiled", {"GROUP": 256})
TUNINGS: dict[str, tuple[Tuning, ...]] = {
    "embed_rows": (Tuning({"TILE_N": 1024}, private={"GROUP": 256}),),
    "embed_rows_ternary": (Tuning({"TILE_N": 1024}, private={"GROUP": 256}),),
    "rms_norm_quantize": (Tuning(private={"GROUP": 256}),),
    "glu_norm_quantize": (Tuning(private={"GROUP": 256}),),
    "rms_norm": (Tuning(private={"GROUP": 256}),),
    "matmul_ternary": (
        *(Tuning(_tile(16, rows), private={"GROUP": 128, "LANES": 8, "DEPTH": 4}) for rows in (1, 2, 4, FEW_ROWS)),
        _TILED,
    ),
    "matmul_ternary_block": (
        *(Tuning(_tile(16, rows), private={"GROUP": 128, "LANES": 8}) for rows in (1, FEW_ROWS)),
        _TILED,
    ),
    "rope_store_kv": (Tuning({"TILE_N": 1}, private={"GROUP": 64}),),
    "attention": tuple(_attention(spread, owned) for _, spread, owned in HEAD_SPANS),
    "matmul_dense": tuple(_dense(rows, aligned) for rows in (1, 4) for aligned in (0, 1)),
    "argmax_advance": (Tuning({"SPLITS": 1}, private={"GROUP": 256}),),
    "top_k": (Tuning({"SPLITS": 1}, private={"GROUP": 256}),),
}
"""All tunings there are; with the semantic constants of each kernel they name the programs."""


def tune(spec: KernelSpec, params: Params) -> Tuning:
    """The one for a launch; UnsupportedError for a kernel that is not on offer, or heads that are too large."""
    found = TUNINGS.get(spec.name)
    if found is None:
        raise UnsupportedError(f"there is no kernel {spec.name}", backend="level-zero", operation="tuning")
    rows = int(params.get("rows", 1))
    if spec.name in ("matmul_ternary", "matmul_ternary_block"):
        return next((one for one in found if rows <= one.tile["TILE_T"] and rows <= FEW_ROWS), found[-1])
    if spec.name == "matmul_dense":
        return found[2 * (rows > 1) + (int(params["width"]) % 8 == 0)]
    if spec.name == "attention":
        for one, (most, _, _) in zip(found, HEAD_SPANS, strict=True):
            if params["head_dim"] <= most:
                return one
        raise UnsupportedError(f"heads of {params['head_dim']} elements", backend="level-zero", operation="tuning")
    return found[0]


def program_name(spec: KernelSpec, constants: Constants, tuning: Tuning) -> str:
    """Of the program's file, such as matmul_ternary_tiled.ADD0.GROUP256.SPLITS1.TILE_N64.TILE_T64."""
    named = {name: constants[name] for name in spec.constants} | dict(tuning.tile) | dict(tuning.private)
    entry = f"{spec.name}_{tuning.variant}" if tuning.variant else spec.name
    return ".".join((entry, *(f"{name}{value}" for name, value in sorted(named.items()))))


def programs() -> Iterator[tuple[str, KernelSpec, dict[str, int], Tuning]]:
    """(name, kernel, semantic constants, tuning) of every program in the wheel."""
    for kernel, tunings in TUNINGS.items():
        spec = CATALOGUE[kernel]
        for values in product(*spec.constants.values()):
            constants = dict(zip(spec.constants, values, strict=True))
            for tuning in tunings:
                yield program_name(spec, constants, tuning), spec, constants, tuning
