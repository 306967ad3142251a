"""Validation of the versions, ranks and device descriptions that plugins report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bitnet_hal.device import Backend, DeviceInfo, DeviceType, TransferMode
from bitnet_hal.discovery.known import REPORT, upgrade_hint
from bitnet_hal.errors import BackendIncompatibleError
from bitnet_hal.features import FEATURES
from bitnet_hal.isolation import checked_fields
from bitnet_hal.version import API_VERSION

SOFTWARE_NAMES = (
    "llvmpipe",
    "lavapipe",
    "softpipe",
    "swiftshader",
    "pocl",
    "portable computing language",
    "basic render driver",
)
"""Parts of device names that reveal a CPU behind a GPU's API."""
_FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("backend", "name", "vendor", "driver", "physical_id"), str),
    **dict.fromkeys(("index", "total_memory", "max_allocation", "max_binding", "alignment"), int),
    **dict.fromkeys(("kernels", "features"), frozenset),
    "max_grid": tuple,
    "type": DeviceType,
    "transfer": TransferMode,
    "batch_invariant_rows": Mapping,
    "extra": Mapping,
}

log = logging.getLogger(__name__)


def check_api(api: tuple[int, int], distribution: str) -> None:
    """Raise BackendIncompatibleError unless the major is equal and the minor is not higher than ours."""
    if not (isinstance(api, tuple) and len(api) == 2 and all(type(part) is int for part in api)):
        raise BackendIncompatibleError("its api is not a (major, minor) of the HAL", hint=f"Upgrade {distribution}")
    major, minor = api
    wanted = f"it was written for version {major}.{minor} of the HAL, bitnet-hal has {API_VERSION[0]}.{API_VERSION[1]}"
    if major < API_VERSION[0]:
        raise BackendIncompatibleError(wanted, hint=upgrade_hint(distribution))
    if major > API_VERSION[0] or minor > API_VERSION[1]:
        raise BackendIncompatibleError(wanted, hint=upgrade_hint("bitnet-hal"))


def check_rank(rank: object) -> None:
    """Raise BackendIncompatibleError unless the rank of a backend is an int."""
    if type(rank) is not int:
        hint = f"Report it to the plugin's authors {REPORT}"
        raise BackendIncompatibleError(f"its rank is {rank!r}, not an int", hint=hint)


def validate(backend: Backend, info: Any, others: list[DeviceInfo]) -> str:
    """Return the reason why a listed device cannot be used, "" if it can. others: devices listed before it."""
    if problem := _problem(info):
        return f"a device of '{backend.name}': {problem}"
    if info.backend != backend.name:
        return f"a device of '{backend.name}' calls itself '{info.request}'"
    if info.index in [other.index for other in others]:
        return f"two devices call themselves '{info.request}'"
    return ""


def log_unknown(info: DeviceInfo) -> None:
    """Log names of kernels and features that this version does not know, at level debug."""
    from bitnet_hal.kernels.catalogue import CATALOGUE  # a help text needs no catalogue

    optional = {spec.name for spec in CATALOGUE.values() if not spec.base}
    for what, unknown in (("kernels", info.kernels - optional), ("features", info.features - FEATURES)):
        if unknown:
            log.debug("%s names %s that bitnet-hal does not know: %s", info.request, what, ", ".join(sorted(unknown)))


def _problem(info: Any) -> str:
    """Return the first fault of a device's description, "" if it has none."""
    if type(info) is not DeviceInfo:  # attributes of a subclass may be the plugin's code
        return f"it is described by {type(info).__name__}, not by DeviceInfo"
    if problem := checked_fields(info, _FIELDS):
        return f"its field {problem}"
    if not info.name.strip():
        return "it has no name"
    if min(info.total_memory, info.max_allocation, info.max_binding) < 0:
        return "a size is negative"
    if not 4 <= info.alignment <= 4096 or info.alignment & (info.alignment - 1):
        return f"its alignment {info.alignment} is not a power of two from 4 to 4096"
    if not all(isinstance(name, str) for name in (*info.kernels, *info.features, *info.extra)):
        return "a name of a kernel, a feature or an extra is not a string"
    for name, rows in info.batch_invariant_rows.items():
        if not isinstance(name, str) or type(rows) is not int or rows < 1:
            return f"its batch-invariant rows of {name!r} are {rows!r}, not a number of 1 or more"
    if [type(size) for size in info.max_grid] != [int, int, int]:
        return "its largest grid is not three integers"
    if not all(isinstance(value, str | int | float | bool) for value in info.extra.values()):
        return "an extra is not a string, number or bool"
    return ""


def reclassify_software(info: DeviceInfo) -> DeviceInfo:
    """Return the description with type SOFTWARE if it claims a GPU but its name reveals a software driver."""
    if info.type in (DeviceType.GPU, DeviceType.INTEGRATED):
        for name in SOFTWARE_NAMES:
            if name in info.name.lower():
                log.warning(
                    "%s (%s) counts as software, not as a GPU: its name contains '%s'", info.request, info.name, name
                )
                return replace(info, type=DeviceType.SOFTWARE)
    return info
