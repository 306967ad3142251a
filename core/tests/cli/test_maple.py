"""The commands on a tiny mixture of experts with sliding windows."""

from __future__ import annotations

from pathlib import Path

MAPLE = Path(__file__).parents[1] / "golden" / "maple" / "TQ.gguf"


def test_what_inspect_shows(bitnet) -> None:
    found = bitnet("inspect", MAPLE)
    assert found.code == 0
    assert "5 in each layer, of which a token uses 2" in found.out
    assert "the last 24 positions in 1 of the layers; the others have no positions (NoPE)" in found.out
    assert "does not load" not in found.out


def test_run(bitnet) -> None:
    found = bitnet("run", "Hello", "-m", MAPLE, "-n", 3, "-d", "numpy")
    assert (found.code, "tiny maple on numpy:0" in found.err) == (0, True)


def test_a_backend_without_the_kernels_is_refused(bitnet, install_plugin) -> None:
    install_plugin(
        "bare",
        """
        from dataclasses import replace
        from bitnet_hal.device import DeviceType
        from bitnet_hal.reference.describe import numpy_info
        from bitnet_hal.reference.device import NumpyDevice
        def info():
            return replace(numpy_info(), backend="bare", name="Bare", type=DeviceType.GPU, kernels=frozenset({"top_k"}))
        Backend.devices = lambda self: [info()]
        Backend.open = lambda self, index: NumpyDevice(info())
        """,
    )
    found = bitnet("run", "Hello", "-m", MAPLE, "-n", 2, "-d", "bare")
    lacking = "clamp_glu_quantize, matmul_experts, route_experts, sum_experts, window_attention"
    assert (found.code, found.out) == (1, "")
    assert f"cannot run models of architecture maple: it lacks the kernels {lacking}" in found.err
