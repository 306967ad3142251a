"""The exact small head: its tokens, and the bits of their logits, are those of the f16 head."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_cpu.describe import usable_paths
from bitnet_cpu.device import CpuDevice
from bitnet_hal.device import View, whole
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher
from bitnet_hal.rounding import ceil_div

OUTS, WIDTH = 20011, 1024
F32 = npt.NDArray[np.float32]


class Head:
    """A head and its int8 copy on one code path."""

    def __init__(self, table: npt.NDArray[np.float16], path: str) -> None:
        self.device = CpuDevice(path)
        self.launcher = Launcher(self.device)
        self.w = self._put(table)
        self.x, self.logits = self._room(4 * WIDTH), self._room(4 * OUTS)
        self.codes, self.scale, self.error = (self._room(n) for n in (OUTS * WIDTH, 4 * OUTS, 4 * OUTS))
        self.bound = self._room(4 * ceil_div(OUTS, 64))
        self._run("pack_head", {"outs": OUTS, "width": WIDTH}, (self.w, self.codes, self.scale, self.error))

    def _room(self, nbytes: int) -> View:
        return whole(self.device.alloc(nbytes))

    def _put(self, values: npt.NDArray[Any]) -> View:
        view = self._room(values.nbytes)
        self.device.upload(view, values.view(np.uint8).reshape(-1).data)
        return view

    def _run(self, name: str, params: dict[str, int], views: tuple[View, ...], **constants: int) -> None:
        self.launcher.run([self.launcher.prepare(CATALOGUE[name], params, views, constants)])

    def _read(self) -> F32:
        out = np.empty(OUTS, np.float32)
        self.device.download(self.logits, out.view(np.uint8).data)
        return out

    def exact(self, x: F32) -> F32:
        self.device.upload(self.x, x.view(np.uint8).data)
        shape = {"rows": 1, "outs": OUTS, "width": WIDTH, "y_stride": OUTS, "y_first": 0}
        self._run("matmul_dense", shape, (self.x, self.w, self.logits), DTYPE=1)
        return self._read()

    def small(self, x: F32, k: int) -> F32:
        self.device.upload(self.x, x.view(np.uint8).data)
        shape = {"rows": 1, "outs": OUTS, "width": WIDTH, "stride": OUTS}
        self._run("approx_logits", shape, (self.x, self.codes, self.scale, self.error, self.logits, self.bound))
        self._run("refine_logits", shape | {"k": k}, (self.x, self.w, self.error, self.bound, self.logits))
        return self._read()


def head_table(name: str) -> npt.NDArray[np.float16]:
    rng = np.random.default_rng(3)
    table = rng.standard_normal((OUTS, WIDTH), np.float32)
    if name == "close":  # many rows nearly equal
        table = np.repeat(table[: OUTS // 7 + 1], 7, axis=0)[:OUTS] + 1e-3 * table
    elif name == "wild":  # lengths over orders of magnitude
        table *= np.exp(2 * rng.standard_normal((OUTS, 1), np.float32))
    elif name == "spiky":  # one column takes all int8 codes
        table[:, 5] *= 300
    elif name == "zero":
        table[:] = 0
    return np.clip(table, -60000, 60000).astype(np.float16)


CASES = [(name, usable_paths()[0]) for name in ("normal", "close", "wild", "spiky", "zero")]
CASES += [("normal", path) for path in usable_paths()[1:]]


@pytest.mark.parametrize(("name", "path"), CASES)
def test_the_largest_logits_are_the_f16_heads(name: str, path: str) -> None:
    head, rng = Head(head_table(name), path), np.random.default_rng(4)
    for round_ in range(6):
        x = rng.standard_normal(WIDTH, np.float32) * np.float32(10.0 ** (round_ - 3))
        full = head.exact(x)
        for k in (1, 40):
            mixed, order = head.small(x, k), np.argsort(-full, kind="stable")[:k]
            np.testing.assert_array_equal(np.argsort(-mixed, kind="stable")[:k], order)
            np.testing.assert_array_equal(mixed[order], full[order])  # the same bits


def test_few_logits_are_computed_exactly() -> None:
    head = Head(head_table("normal"), usable_paths()[0])
    x = np.random.default_rng(5).standard_normal(WIDTH, np.float32)
    exact, mixed = head.exact(x), head.small(x, 1)
    assert 0 < np.mean(exact == mixed) < 0.5
    np.testing.assert_allclose(exact, mixed, atol=0.02 * float(np.abs(exact).max()))
