"""Kernels under GPU-assisted validation: every buffer access is compared with the bound range.

Debian's own layer (1.3.239) does not know pushed descriptors and reports every launch; that of its Chromium does know
them. It has no manifest, so one is written here. Its checks make a shader many times slower: a case or two of a kernel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
LIBRARY = Path("/usr/lib/chromium/libVkLayer_khronos_validation.so")
NAME = "VK_LAYER_KHRONOS_validation"
CASES = (
    "embed_rows-f16 or rms_norm-t2 or quantize-norm-t2 or glu_norm_quantize-silu-t7 or matmul_ternary-t1-n31 "
    "or matmul_ternary-add-t33 or matmul_ternary_block-b64-add or rope_store_kv-normed-odd or attention-f16-one "
    "or matmul_dense-q8_0-t33 or argmax_advance-ties or norm_matmul-t1-n48 or pack_head or approx_logits-stride "
    "or hadamard_rotate-forward-t3 or glu-silu-t2 or causal_conv1d-taps3 or gated_delta_rule-h3 "
    "or gated_delta_rule-prompts or gated_rms_norm-t5 "
    "or norm_rotate_quantize-a32-norm1-keep1-t3 or glu_rotate_quantize-a32-silu-t2 "
    "or gated_rotate_quantize-a32-normed-silu-t3"
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment variables that load the layer with these checks alone."""
    if not LIBRARY.is_file():
        pytest.skip("it needs Chromium's validation layer (apt install chromium)")
    folder = tmp_path_factory.mktemp("layer")
    layer = {
        "name": NAME,
        "type": "GLOBAL",
        "library_path": str(LIBRARY),
        "api_version": "1.4.300",
        "implementation_version": "1",
        "description": "Khronos validation layer of Chromium",
    }
    (folder / f"{NAME}.json").write_text(json.dumps({"file_format_version": "1.2.0", "layer": layer}))
    chosen = {
        "VK_LAYER_PATH": str(folder),
        "VK_INSTANCE_LAYERS": NAME,
        "VK_LAYER_GPUAV_ENABLE": "1",
        "VK_LAYER_GPUAV_SHARED_MEMORY_DATA_RACE": "0",  # reports a lane's own element, which it wrote itself, as a race
        "BITNET_GPU_TIMEOUT": "300",
    }
    return {**os.environ, **chosen}


def run(environment: dict[str, str], code: list[str]) -> str:
    """Return the output of a Python process under the layer, which reports that it is loaded."""
    result = subprocess.run([sys.executable, *code], capture_output=True, text=True, env=environment, check=False)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-3000:]
    assert "GPU Assisted Validation" in output, "the layer is not there, or does not check shaders"
    return output


@pytest.mark.parametrize("part", ["1/4", *(pytest.param(f"{part}/4", marks=pytest.mark.again) for part in (2, 3, 4))])
def test_kernels_stay_within_their_buffers(environment: dict[str, str], part: str) -> None:
    chosen = f"test_kernel and not offered and ({CASES})"
    options = ["-q", "-s", "-p", "no:cacheprovider", "--bitnet-part", part, "-k", chosen]
    output = run(environment, ["-m", "pytest", *options, str(HERE / "test_conformance.py")])
    assert " passed" in output
    assert "Validation Error" not in output


NORM = """
from bitnet_hal.device import Tuning, whole
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_vulkan.plugin import bitnet_backend
device = bitnet_backend().open(0)
kernel = device.compile(RMS_NORM, {{}}, Tuning(private={{"GROUP": 128, "WIDTH": {width}}}))
views = [whole(device.alloc(nbytes)) for nbytes in (3 * 2048, 12, {gamma}, {y})]
device.launch(kernel, (3, 1, 1), views, RMS_NORM.pack({{"rows": 3, "width": 256, "eps": 1e-5}}))
device.synchronize()
device.close()
"""


@pytest.mark.parametrize(("binding", "gamma", "y"), [(2, 1024, 3 * 2048), (3, 2048, 3 * 1024)])
def test_a_kernel_that_goes_beyond_its_buffers_is_reported(
    environment: dict[str, str], binding: int, gamma: int, y: int
) -> None:
    """The check above can fail: rows compiled twice as wide as they are are read (2) or written (3) past the end. Only
    one buffer is too small, since of several threads any may be the first to be reported."""
    assert "Validation Error" not in run(environment, ["-c", NORM.format(width=256, gamma=gamma, y=y)])
    output = run(environment, ["-c", NORM.format(width=512, gamma=gamma, y=y)])
    assert f"binding = {binding}, index 0)  access out of bounds" in output
