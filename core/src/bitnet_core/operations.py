"""Single operations on numpy arrays, without a model, on any device."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device, View, whole
from bitnet_hal.discovery.registry import kernels_hash
from bitnet_hal.discovery.request import DeviceRequest
from bitnet_hal.discovery.selection import BackendStartupSummary, open_device
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher
from bitnet_hal.tuning.measured import tilings

from bitnet_core.errors import ModelError
from bitnet_core.formats.ternary.floats import absmean, exact
from bitnet_core.model.weights import TernaryWeight, padded

_REFUSED = {
    "tl1": "the tiles of TL1 depend on the shape and are not stored with it; only reading it is supported",
    "tl2": "the tiles of TL2 depend on the shape and are not stored with it; only reading it is supported",
    "qk256": "QK256 is a private layout of bitnet-rs without scales, and is not I2_S",
}


def provider(device: str | DeviceRequest | None = None) -> Provider:
    """Open a device for single operations. Raises the errors of `load`."""
    return Provider(*open_device(device))


class Provider:
    """Ternary operations on one device, for one thread at a time; a context manager that closes the device."""

    def __init__(self, device: Device, summary: BackendStartupSummary | None = None) -> None:
        self.device, self.summary = device, summary
        self._launcher = Launcher(device, tilings(device.info, kernels_hash))

    @property
    def name(self) -> str:
        """The device's request, such as "cuda:0"."""
        return self.device.info.request

    def matmul_i2s(
        self, a: npt.NDArray[np.int8], w: npt.NDArray[np.uint8], scale: float | npt.NDArray[np.float32] = 1.0
    ) -> npt.NDArray[np.float32]:
        """Return f32[M, N] = a W^T * scale for a i8[M, K] and ternary W[N, K]; the sums are exact integers.

        w: u8[N, ceil(K / 128) * 32], I2_S 128-blocks as returned by `quantize`. scale: one value, or f32[N]. Raises
        UsageError if shapes or dtypes do not fit.
        """
        if a.ndim != 2 or a.dtype != np.int8 or not a.size:
            raise UsageError(f"a must be int8[M, K], not {a.dtype}{list(a.shape)}")
        rows, columns = a.shape
        width = padded(columns)
        if w.ndim != 2 or w.dtype != np.uint8 or w.shape[1] != width // 4 or not w.size:
            raise UsageError(f"w must be uint8[N, {width // 4}] for K = {columns}, not {w.dtype}{list(w.shape)}")
        outs = len(w)
        scales = np.asarray(scale, np.float32).reshape(-1)
        if scales.size not in (1, outs):
            raise UsageError(f"scale must be one value or {outs}, not {scales.size}")
        q = np.zeros((rows, width), np.int8)
        q[:, :columns] = a
        inputs = (
            np.ascontiguousarray(w),
            np.broadcast_to(scales, (outs,)).copy(),
            q,
            np.ones(rows, np.float32),
            q.sum(axis=1, dtype=np.int32),
        )
        out = np.empty((rows, outs), np.float32)
        views: list[View] = []
        try:
            for array in inputs:
                views.append(whole(self.device.alloc(array.nbytes)))
                self.device.upload(views[-1], array.reshape(-1).view(np.uint8).data)
            views.append(whole(self.device.alloc(out.nbytes)))
            params = {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
            self._launcher.run([self._launcher.prepare(CATALOGUE["matmul_ternary"], params, views, {"ADD": 0})])
            self.device.download(views[-1], out.data.cast("B"))
        finally:
            for view in views:
                self.device.free(view.buffer)
        return out

    def quantize(
        self, x: npt.NDArray[np.float32], kind: Literal["i2_s"] = "i2_s"
    ) -> tuple[npt.NDArray[np.uint8], np.float32]:
        """Quantize f32[N, K] to (u8[N, ceil(K / 128) * 32], scale).

        Floats that are -s, 0 and s already keep their s; others are rounded as in training, scale = mean |x|. Raises
        UsageError for another kind, shape or values that are not finite.
        """
        if kind != "i2_s":
            raise UsageError(
                f"cannot quantize to '{str(kind)[:40]}': {_REFUSED.get(str(kind).lower(), 'unknown')}; use i2_s"
            )
        if x.ndim != 2 or not x.size:
            raise UsageError(f"x must be a matrix, not of shape {list(x.shape)}")
        weight = _ternary(np.asarray(x, np.float32))
        return weight.codes, np.float32(weight.scales[0])

    def close(self) -> None:
        """Close the device; may be called twice."""
        self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ternary(x: npt.NDArray[np.float32]) -> TernaryWeight:
    rows, columns = x.shape
    if not np.isfinite(x).all():
        raise UsageError("x holds values that are not finite")
    try:
        return exact(rows, columns, lambda part: x[part])
    except ModelError:
        return absmean(rows, columns, lambda part: x[part])
