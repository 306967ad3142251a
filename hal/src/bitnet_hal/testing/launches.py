"""Launches of all kernels in many sizes, without inputs, for tests of a plugin's tunings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from bitnet_hal.device import DeviceInfo
from bitnet_hal.kernels.spec import KernelSpec, ParamDict
from bitnet_hal.testing.cases.registry import all_cases
from bitnet_hal.tuning.query import TuningQuery

ROWS = (1, 9, 1024)
"""Rows of a decode step, a short prompt and a long one, in addition to those of the kit's cases."""


@cache
def all_launches() -> tuple[tuple[KernelSpec, dict[str, int], ParamDict], ...]:
    """Return (kernel, constants, parameters) of the kit's cases, each with several numbers of rows."""
    found = {}
    for case in all_cases():
        launch = case.launch()
        params = dict(launch.params)
        for rows in (params.get("rows", 0), *ROWS):
            if "rows" in params:
                params["rows"] = rows
            key = (case.kernel, *launch.constants.items(), *params.items())
            found[key] = (case.spec, launch.constants, dict(params))
    return tuple(found.values())


def tuning_queries(info: DeviceInfo) -> Iterator[TuningQuery]:
    """Yield a query for each launch of `all_launches` whose kernel the device offers."""
    for spec, constants, params in all_launches():
        if spec.base or spec.name in info.kernels:
            yield TuningQuery(spec, constants, params, info)
