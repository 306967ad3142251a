"""The sources for few rows on GPUs, by the kit's own cases on whatever Vulkan device there is: a CPU runs them too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.testing.cases.case import Case, expected
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.compare import check_outputs
from bitnet_hal.testing.workbench import Bench
from bitnet_vulkan.device import VulkanDevice

MULTIPROCESSORS = 2


@dataclass
class Opened:
    """A backend for the workbench whose device is already open."""

    device: VulkanDevice
    name: str = "vulkan"
    api: tuple[int, int] = (2, 0)

    def devices(self) -> list[DeviceInfo]:
        return [self.device.info]

    def open(self, index: int) -> VulkanDevice:
        return self.device


@pytest.fixture
def bench(device: VulkanDevice) -> Iterator[Bench]:
    """A bench on a device that is tuned as a GPU of few multiprocessors."""
    if not device.info.extra["subgroups"]:
        pytest.skip("kernels for few rows need subgroups")
    extra = {**device.info.extra, "resident": MULTIPROCESSORS}
    device.info = replace(device.info, type=DeviceType.GPU, extra=extra)
    bench = Bench(Opened(device), 0, device.info)
    yield bench
    bench.close()


def chosen() -> list[Case]:
    """Return the cases of fused norms of two to eight rows that a CPU computes in a second."""
    found = [*cases_of("norm_matmul"), *cases_of("norm_matmul_glu")]
    return [case for case in found if 1 < case.launch().params["rows"] <= 8]


@pytest.mark.parametrize("case", chosen(), ids=lambda case: case.id)
def test_norms_of_few_rows(bench: Bench, case: Case) -> None:
    launch = case.launch()
    assert bench.device.tuning(case.spec, launch.constants, launch.params).variant == "few"
    prepared = bench.prepare(case.spec, launch)
    prepared.run(bench.device)
    actual = bench.results(case, launch, prepared)
    bench.tidy()
    check_outputs(case, launch, expected(case.spec, launch), actual)
