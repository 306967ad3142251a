"""What GPUs are given and software adapters are not (joined kernels, positions shared by workgroups), on whatever
adapter there is: the kit's cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from bitnet_core.errors import BackendUnavailableError
from bitnet_core.hal import DeviceInfo, DeviceType
from bitnet_core.testing.cases.case import Case, expected
from bitnet_core.testing.cases.registry import cases_of
from bitnet_core.testing.compare import check_outputs
from bitnet_core.testing.workbench import Bench
from bitnet_webgpu.describe import JOINED
from bitnet_webgpu.device import WebGpuDevice
from bitnet_webgpu.plugin import WebGpuBackend
from bitnet_webgpu.tuning import choose

SPLIT = ("attention", "argmax_advance")
ONE_ROW = ("norm_matmul", "norm_matmul_glu")
"""Several rows are left to the kernels that these join."""
CASES = [
    case
    for kernel in (*JOINED, *SPLIT)
    for case in cases_of(kernel)
    if kernel not in ONE_ROW or case.launch().params["rows"] == 1
]


class AsGpu(WebGpuBackend):
    """The first adapter, tuned as a GPU."""

    def open(self, index: int) -> WebGpuDevice:
        device = WebGpuDevice(index)
        device.info = as_gpu(device.info)
        return device


def as_gpu(info: DeviceInfo) -> DeviceInfo:
    return replace(info, type=DeviceType.GPU, kernels=info.kernels | set(JOINED))


@pytest.fixture(scope="module")
def gpu(request: pytest.FixtureRequest) -> Iterator[Bench]:
    backend = AsGpu()
    try:
        info = backend.devices()[0]
    except BackendUnavailableError as error:
        if request.config.getoption("--require-device"):
            raise
        pytest.skip(str(error))
    bench = Bench(backend, info.index, as_gpu(info))
    yield bench
    bench.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_kernel(gpu: Bench, case: Case) -> None:
    launch, actual = gpu.run(case)
    gpu.tidy()
    check_outputs(case, launch, expected(case.spec, launch), actual)


def test_gpus_share_positions_and_logits() -> None:
    info = as_gpu(DeviceInfo("webgpu", 0, "x", DeviceType.SOFTWARE, extra={"workgroup_storage": 16384}))
    launches = [(case.spec, case.launch()) for case in CASES if case.kernel in (*SPLIT, "rope_attention")]
    variants = {choose(spec, launch.constants, launch.params, info).variant for spec, launch in launches}
    assert variants == {"", "split"}
