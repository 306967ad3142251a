"""Launches of linear layers: norm and quantization of their inputs, ternary and dense products."""

from __future__ import annotations

import logging

from bitnet_hal.device import View
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.sizes import row_scales
from bitnet_hal.kernels.spec import ParamDict
from bitnet_hal.launcher import Launch, Launcher
from bitnet_hal.tuning.query import FEW_ROWS

from bitnet_core.plan.device_weights import Dense, DeviceWeights, Linear, LinearPart
from bitnet_core.plan.kernels import invariant_optional, invariant_rows, mixed_attention_rows
from bitnet_core.plan.scratch import Scratch

log = logging.getLogger(__name__)


class LinearLayers:
    """A builder of the launches of linear layers with these weights.

    fused: False disables the optional kernels that replace others, except those with which the bits of a row do not
    depend on the other rows (`invariant_optional`); most support certain numbers of rows only.
    """

    left_out: frozenset[str] = frozenset()
    """Optional kernels that do not suit the model."""

    def __init__(self, weights: DeviceWeights, launcher: Launcher, *, fused: bool) -> None:
        self.weights = weights
        self.launcher = launcher
        self.config = config = weights.config
        self.ablock = config.activation_group_size
        info = launcher.device.info
        rows = invariant_rows(config, info, group_scales=weights.has_group_scales)
        self._optional = (info.kernels if fused else invariant_optional(info, rows)) - self.left_out
        self._mixed_rows = mixed_attention_rows(info, fused=fused)

    def _fused(
        self, kernel: str, params: ParamDict, views: tuple[View, ...], constants: dict[str, int]
    ) -> Launch | None:
        """Return the launch of an optional kernel; None if the device does not support it for these sizes."""
        if kernel not in self._optional:
            return None
        try:
            return self.launcher.prepare(CATALOGUE[kernel], params, views, constants)
        except UnsupportedError as exc:
            log.debug("%s: %s", kernel, exc)
            return None

    def dense(self, matrix: Dense, rows: int, x: View, y: View) -> list[Launch]:
        """Compute y[rows, matrix.rows] = matrix x."""
        return [
            self.launcher.prepare(
                CATALOGUE["matmul_dense"],
                {
                    "rows": rows,
                    "outs": part.count,
                    "width": matrix.columns,
                    "y_stride": matrix.rows,
                    "y_first": part.first,
                },
                (x, part.table, y),
                {"DTYPE": matrix.dtype},
            )
            for part in matrix.parts
        ]

    def _rms_norm(self, scratch: Scratch, rows: int, wanted: int, index: str, gamma: View, y: View) -> Launch:
        """Compute y[wanted, H], the normed rows of x that the buffer `index` numbers, of a step of `rows` rows."""
        return self.launcher.prepare(
            CATALOGUE["rms_norm"],
            {"rows": wanted, "width": self.config.hidden, "eps": self.config.norm_eps},
            (scratch.view("x", rows), scratch.view(index, wanted), gamma, y),
        )

    def _norm_matmul(
        self, scratch: Scratch, rows: int, x: View, gamma: View | None, linear: Linear, y: View, *, add: int = 0
    ) -> list[Launch]:
        """Compute y[rows, outs] (+)= linear(quantize(norm(x))), without the norm if gamma is None. A few rows use the
        fused kernel norm_matmul if the device has it.

        The inputs of products that add to y have separate buffers for their codes, so that a device can quantize the
        output of another kernel within that kernel's launch, while its inputs are still being read.
        """
        fused = []
        for part in linear.parts if rows <= FEW_ROWS else ():
            shape = self._product(rows, linear, part, linear.outs)
            params = shape | {"columns": linear.columns, "eps": self.config.norm_eps}
            views = (x, gamma or self.weights.output_norm, part.codes, part.scales, y)
            constants = {"NORM": int(gamma is not None), "ADD": add, **self._scales(part.block)}
            if launch := self._fused("norm_matmul", params, views, constants):
                fused.append(launch)
        if len(fused) == len(linear.parts):
            return fused
        return [
            self._norm_quantize(scratch, rows, x, gamma, linear, added=bool(add)),
            *self._matmul(scratch, rows, linear, y, linear.outs, add, added=bool(add)),
        ]

    def _norm_quantize(
        self, scratch: Scratch, rows: int, x: View, gamma: View | None, linear: Linear, *, added: bool = False
    ) -> Launch:
        return self.launcher.prepare(
            CATALOGUE["rms_norm_quantize"],
            {"rows": rows, "width": linear.columns, "stride": linear.width, "eps": self.config.norm_eps},
            (x, gamma or self.weights.output_norm, *self._quantized(scratch, rows, linear.width, added=added)),
            {"NORM": int(gamma is not None), "ABLOCK": self.ablock},
        )

    def _matmul(
        self,
        scratch: Scratch,
        rows: int,
        linear: Linear,
        y: View,
        y_stride: int,
        add: int = 0,
        *,
        added: bool = False,
    ) -> list[Launch]:
        quantized = self._quantized(scratch, rows, linear.width, added=added)
        launches = []
        for part in linear.parts:
            spec = CATALOGUE["matmul_ternary_block" if part.block else "matmul_ternary"]
            constants = {"ADD": add, **(self._scales(part.block) if part.block else {})}
            views = (part.codes, part.scales, *quantized, y)
            launches.append(self.launcher.prepare(spec, self._product(rows, linear, part, y_stride), views, constants))
        return launches

    @staticmethod
    def _product(rows: int, linear: Linear, part: LinearPart, y_stride: int) -> ParamDict:
        shape: ParamDict = {"rows": rows, "outs": part.outs, "width": linear.width}
        return shape | {"y_stride": y_stride, "y_first": part.y_first}

    def _quantized(self, scratch: Scratch, rows: int, width: int, *, added: bool = False) -> tuple[View, View, View]:
        """Return the views of codes, scales and sums of codes. added: those for a product that adds to its output."""
        scales = 4 * row_scales(width, self.ablock)
        codes, scale, qsum = ("added_codes", "added_scale", "added_qsum") if added else ("quantized", "scale", "qsum")
        return scratch.view(codes, rows, width), scratch.view(scale, rows, scales), scratch.view(qsum, rows, scales)

    def _scales(self, block: int) -> dict[str, int]:
        return {"BLOCK": block, "ABLOCK": self.ablock}
