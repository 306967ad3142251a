"""Check of rotations that a plugin joins to the product of their result (families.joined_rotations)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_hal.device import Device, Recording, View, whole
from bitnet_hal.kernels.catalogue import CATALOGUE, SIGMOID, SILU
from bitnet_hal.kernels.spec import KernelSpec, ParamDict

WIDTH = 1024
QUANTIZED = {"q": WIDTH, "scale": WIDTH // 8, "qsum": WIDTH // 8}
"""Bytes of the outputs of a rotation."""
ROTATIONS: dict[str, tuple[ParamDict, dict[str, int]]] = {
    "norm_rotate_quantize": ({"width": WIDTH, "block": WIDTH, "eps": 1e-6}, {"NORM": 1, "KEEP": 1}),
    "glu_rotate_quantize": ({"width": WIDTH, "block": WIDTH}, {"ACT": SILU}),
    "gated_rotate_quantize": (
        {"n_heads": 8, "head_dim": 128, "groups": 2, "block": WIDTH, "eps": 1e-6},
        {"NORM": 1, "ACT": SIGMOID},
    ),
}
"""Parameters and constants. All columns are one block, since a CPU runs one workgroup after the other, so that a
workgroup may wait only for the first one."""


class RotatedProduct:
    """The launches of a rotation of one row and a product, with their buffers.

    outs: matrix rows. between: with an independent launch between the two.
    """

    def __init__(self, device: Device, name: str, outs: int, add: int, *, between: bool) -> None:
        rng = np.random.default_rng(0)
        self.device = device
        self.outs = outs
        self.between = between
        self.add = add
        self.spec = CATALOGUE[name]
        self.params, self.constants = ROTATIONS[name]
        inputs = [binding for binding in self.spec.bindings if binding.name not in (*QUANTIZED, "y")]
        self.sources = [self._filled(rng.standard_normal(2 * WIDTH).astype(np.float32)) for _ in inputs]
        self.kept = [whole(device.alloc(4 * WIDTH))] if "KEEP" in self.constants else []
        self.quantized = [whole(device.alloc(nbytes)) for nbytes in QUANTIZED.values()]
        codes = rng.integers(0, 256, outs * WIDTH // 4, dtype=np.uint8)
        self.weights = [
            self._filled(codes & ~(codes >> 1 & 0x55)),  # no code is 3
            self._filled(np.ones(outs * WIDTH // 128, np.float32)),
        ]
        self.y = whole(device.alloc(4 * outs))
        self.turned = whole(device.alloc(4 * WIDTH))

    def _filled(self, values: npt.NDArray[Any]) -> View:
        view = whole(self.device.alloc(values.nbytes))
        self.device.upload(view, values.data.cast("B"))
        return view

    def _launch(self, spec: KernelSpec, constants: dict[str, int], params: ParamDict, views: Sequence[View]) -> None:
        tuning = self.device.tuning(spec, constants, params)
        kernel = self.device.compile(spec, constants, tuning)
        self.device.launch(kernel, spec.grid(params, tuning.tile), views, spec.pack(params))

    def step(self) -> None:
        """Launch the rotation and the product."""
        rotation = [*self.sources, *self.kept, *self.quantized]
        self._launch(self.spec, {**self.constants, "ABLOCK": 128}, {"rows": 1, **self.params}, rotation)
        if self.between:
            views = [self.sources[0], self.sources[-1], self.turned]
            sizes: ParamDict = {"rows": 1, "width": WIDTH, "block": 64}
            self._launch(CATALOGUE["hadamard_rotate"], {"INVERSE": 0}, sizes, views)
        shape: ParamDict = {"rows": 1, "outs": self.outs, "width": WIDTH, "y_stride": self.outs, "y_first": 0}
        scales = {"ADD": self.add, "BLOCK": 128, "ABLOCK": 128}
        self._launch(CATALOGUE["matmul_ternary_block"], scales, shape, [*self.weights, *self.quantized, self.y])

    def outputs(self) -> list[bytes]:
        """Return the bytes of all outputs, and set them to zeros."""
        found = []
        for view in (*self.kept, *self.quantized, self.y):
            content = bytearray(view.nbytes)
            self.device.download(view, memoryview(content))
            found.append(bytes(content))
            self.device.upload(view, memoryview(bytes(view.nbytes)))
        return found

    def check(self) -> Recording:
        """Check that replays of both launches have the outputs of two launches, and return their recording."""
        self.outputs()
        self.step()
        expected = self.outputs()
        with self.device.record() as recording:
            self.step()
        for _ in range(3):
            self.device.replay(recording)
            assert self.outputs() == expected, f"{self.spec.name} and its product have other outputs in a recording"
        return recording
