"""The exact small head: its tokens are those of the f16 head, and it stays away where it does not fit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.errors import UsageError
from bitnet_core.hal.device import View, whole
from bitnet_core.kernels.catalogue import ARGMAX_ADVANCE, MATMUL_DENSE, TOP_K
from bitnet_core.kernels.spec import KernelSpec
from bitnet_cpu.device import CpuDevice
from bitnet_cpu.info import usable_paths

OUTS, WIDTH = 20011, 1024  # 41 MB of f16: enough for a small head
F32 = npt.NDArray[np.float32]


class Head:
    """A recording of matmul_dense and what chooses from its logits, with or without a small head."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: npt.NDArray[np.float16], small: bool, path: str) -> None:
        monkeypatch.setenv("BITNET_CPU_SMALL_HEAD", "1" if small else "0")
        self.device = CpuDevice(path)
        wrapped = self.device.wrap(table.view(np.uint8).reshape(-1).data)
        assert wrapped is not None
        self.x, self.logits = self._view(4 * WIDTH), self._view(4 * OUTS)
        self.ids, self.values, self.step = self._view(4 * 40), self._view(4 * 40), self._view(16)
        self.index, self.tables, self.history = self._view(4), self._view(4), self._view(4 * 3)
        dense = {"rows": 1, "outs": OUTS, "width": WIDTH, "y_stride": OUTS, "y_first": 0}
        top = {"rows": 1, "vocab": OUTS, "k": 40}
        greedy = {"rows": 1, "vocab": OUTS, "max_blocks": 1, "ring": 2}
        with self.device.record() as self.top:
            self._launch(MATMUL_DENSE, dense, (self.x, whole(wrapped), self.logits), {"DTYPE": 1})
            self._launch(TOP_K, top, (self.logits, self.ids, self.values))
        with self.device.record() as self.greedy:
            self._launch(MATMUL_DENSE, dense, (self.x, whole(wrapped), self.logits), {"DTYPE": 1})
            views = (self.logits, self.index, self.tables, self.step, self.history)
            self._launch(ARGMAX_ADVANCE, greedy, views)

    def _view(self, nbytes: int) -> View:
        return whole(self.device.alloc(nbytes))

    def _launch(
        self, spec: KernelSpec, params: dict[str, int], views: tuple[View, ...], constants: dict[str, int] | None = None
    ) -> None:
        every = {**(constants or {}), **self.device.tuning(spec, constants or {}, params)}
        self.device.launch(self.device.compile(spec, every), spec.grid(params, every), views, spec.pack(params))

    def token(self, x: F32) -> int:
        self.device.upload(self.x, x.view(np.uint8).data)
        self.device.upload(self.step, np.zeros(4, np.int32).view(np.uint8).data)
        self.device.replay(self.greedy)
        return int(self._read(self.step, np.int32)[0])

    def shortlist(self, x: F32) -> tuple[npt.NDArray[np.int32], F32]:
        self.device.upload(self.x, x.view(np.uint8).data)
        self.device.replay(self.top)
        return self._read(self.ids, np.int32), self._read(self.values, np.float32)

    def _read(self, view: View, dtype: type) -> npt.NDArray[np.int32]:
        out = np.empty(view.nbytes // 4, dtype)
        self.device.download(view, out.view(np.uint8).data)
        return out


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
def test_tokens_and_values_are_the_f16_heads(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = head_table(name)
    rng = np.random.default_rng(4)
    heads = [Head(monkeypatch, table, small, path) for small in (False, True)]
    for round_ in range(6):
        x = rng.standard_normal(WIDTH, np.float32) * np.float32(10.0 ** (round_ - 3))
        full, small = (head.shortlist(x) for head in heads)
        np.testing.assert_array_equal(full[0], small[0])
        np.testing.assert_array_equal(full[1], small[1])  # the same bits
        assert heads[0].token(x) == heads[1].token(x) == full[0][0]


def test_nan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch, head_table("normal"), True, usable_paths()[0])
    x = np.ones(WIDTH, np.float32)
    x[7] = np.nan
    assert head.token(x) == -1


def test_logits_below_the_top_are_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    # what the documentation says of a download: this shows that the small head really ran
    table = head_table("normal")
    x = np.random.default_rng(5).standard_normal(WIDTH, np.float32)
    full, small = (Head(monkeypatch, table, on, usable_paths()[0]) for on in (False, True))
    for head in (full, small):
        head.token(x)
    exact, mixed = full._read(full.logits, np.float32), small._read(small.logits, np.float32)
    assert 0 < np.mean(exact == mixed) < 0.5
    np.testing.assert_allclose(exact, mixed, atol=0.02 * float(np.abs(exact).max()))


def test_what_is_saved_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    table = head_table("normal")
    full, small = (Head(monkeypatch, table, on, usable_paths()[0]) for on in (False, True))
    assert full.device.saved_reads(full.greedy) == full.device.saved_reads(full.top) == 0
    for recording in (small.greedy, small.top):  # an int8 copy instead of f16, and three values for each row
        assert small.device.saved_reads(recording) == pytest.approx(table.nbytes / 2 - 12 * OUTS, abs=64)
    with pytest.raises(ValueError, match="not one of this device"):
        full.device.saved_reads(object())


def test_senseless_choice_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_CPU_SMALL_HEAD", "perhaps")
    with pytest.raises(UsageError, match="BITNET_CPU_SMALL_HEAD"):
        CpuDevice()
