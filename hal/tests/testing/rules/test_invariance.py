"""Kernels whose rows depend on others: the rule of batch invariance rejects them, and only beyond the declared rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bitnet_hal.device import ANY_ROWS, DeviceInfo, Tuning
from bitnet_hal.kernels.spec import Constants, KernelSpec, Params
from bitnet_hal.reference import device
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.reference.meanings import MEANINGS
from bitnet_hal.testing.rules.invariance import BATCH_ROWS, partitions

RULE = "test_rows_are_batch_invariant"


def last_bit(values: Any) -> None:
    """Change the last bit of f32 values."""
    values.view(np.int32)[:] ^= 1


def by_count(rows: int) -> Callable[..., None]:
    """Make a fault: the results of launches of `rows` rows differ in the last bit."""

    def fault(right: Callable[..., None], a: Any, p: Any, c: Any) -> None:
        right(a, p, c)
        if int(p["rows"]) == rows:
            last_bit(a[OUTPUTS[fault.kernel]])  # type: ignore[attr-defined]

    return fault


OUTPUTS = {"attention": "out", "matmul_dense": "y", "rms_norm": "y", "gated_delta_rule": "out", "top_k": "total"}


def first_row(right: Callable[..., None], a: Any, p: Any, c: Any) -> None:
    """The first row of several is summed in another order."""
    right(a, p, c)
    if int(p["rows"]) > 1:
        last_bit(a["y"][: int(p["width"])])


def last_row(right: Callable[..., None], a: Any, p: Any, c: Any) -> None:
    right(a, p, c)
    if int(p["rows"]) > 1:
        rows, width = int(p["rows"]), int(p["width"])
        last_bit(a["y"][(rows - 1) * width : rows * width])


def middle_rows(right: Callable[..., None], a: Any, p: Any, c: Any) -> None:
    right(a, p, c)
    if int(p["rows"]) > 2:
        width = int(p["width"])
        last_bit(a["y"][width : 2 * width])


def state_at_cuts(right: Callable[..., None], a: Any, p: Any, c: Any) -> None:
    """The state that a step of several rows leaves differs in the last bit."""
    right(a, p, c)
    if int(p["rows"]) > 1:
        last_bit(a["state"])


@pytest.fixture
def verdict(judge: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return verdict(kernel, fault, rows): the rule's failure on a device that declares `rows` rows."""

    def judged(kernel: str, fault: Callable[..., None], rows: int) -> str:
        right = MEANINGS[kernel]
        monkeypatch.setattr(device, "MEANINGS", {**MEANINGS, kernel: lambda a, p, c: fault(right, a, p, c)})

        class Declaring(NumpyDevice):
            def __init__(self) -> None:
                super().__init__(replace(numpy_info(), batch_invariant_rows={kernel: rows}))

        return judge(Declaring, RULE, kernel=kernel)

    return judged


@pytest.mark.parametrize("kernel", OUTPUTS)
@pytest.mark.parametrize(("rows", "least"), [(2, 8), (8, 8), (9, 64), (33, 64), (64, 64), (BATCH_ROWS, ANY_ROWS)])
def test_a_number_of_rows_with_other_sums(verdict: Callable[..., str], kernel: str, rows: int, least: int) -> None:
    fault = by_count(rows)
    fault.kernel = kernel  # type: ignore[attr-defined]
    assert "differs from the same row alone" in verdict(kernel, fault, least)
    if least > 8:
        assert verdict(kernel, fault, 8) == ""


@pytest.mark.parametrize("fault", [first_row, last_row, middle_rows], ids=lambda fault: fault.__name__)
def test_a_place_with_other_sums(verdict: Callable[..., str], fault: Callable[..., None]) -> None:
    assert "differs from the same row alone" in verdict("rms_norm", fault, 8)


def test_a_state_that_depends_on_cuts(verdict: Callable[..., str]) -> None:
    found = verdict("gated_delta_rule", state_at_cuts, 8)
    assert "differs" in found


def test_products_of_several_rows_by_blas(verdict: Callable[..., str]) -> None:
    def together(_: object, a: Any, p: Any, c: Any) -> None:
        MEANINGS["matmul_dense"](a, p, c)
        if c["DTYPE"] == 0:
            rows, outs, width = (int(p[name]) for name in ("rows", "outs", "width"))
            table = a["w"][: outs * width * 4].view("<f4").reshape(outs, width)
            a["y"][: rows * outs] = (a["x"][: rows * width].reshape(rows, width) @ table.T).reshape(-1)

    assert "matmul_dense-batch-f32: y of row" in verdict("matmul_dense", together, 8)


def test_a_device_with_invariant_tunings_chooses_by_the_rows_of_each_launch(judge: Callable[..., str]) -> None:
    asked = set()

    class Own(NumpyDevice):
        other_rows = 0  # the number of rows whose launches differ in the last bit

        def __init__(self) -> None:
            features = numpy_info().features | {"invariant-tunings"}
            super().__init__(replace(numpy_info(), features=features, batch_invariant_rows={"rms_norm": 64}))

        def invariant_tuning(self, spec: KernelSpec, constants: Constants, params: Params) -> Tuning:
            asked.add(params["rows"])
            return Tuning(private={"OTHER": int(params["rows"] == self.other_rows)})

        def launch(self, kernel: Any, grid: Any, views: Any, params: Any) -> None:
            super().launch(kernel, grid, views, params)
            if kernel.tuning.private.get("OTHER"):
                y = np.empty(views[3].nbytes, np.uint8)
                self.download(views[3], y.data)
                last_bit(y)
                self.upload(views[3], y.data)

    class Different(Own):
        other_rows = 33

    assert judge(Own, RULE, kernel="rms_norm") == ""
    assert asked >= {1, 2, 8, 9, 16, 33, 64}
    assert "in steps of 33, 31 rows differs from the same row alone" in judge(Different, RULE, kernel="rms_norm")


@pytest.mark.parametrize("other_rows", [0, 1, 9, 64])
def test_refined_logits_with_other_bits(
    judge: Callable[..., str], monkeypatch: pytest.MonkeyPatch, other_rows: int
) -> None:
    def refine(a: Any, p: Any, c: Any) -> None:
        arrays = {"x": a["x"], "w": a["w"], "y": a["logits"]}
        MEANINGS["matmul_dense"](arrays, {**p, "y_stride": p["stride"], "y_first": 0}, {"DTYPE": 1})
        if int(p["rows"]) == other_rows:
            last_bit(a["logits"][-1:])

    class Refining(NumpyDevice):
        def __init__(self) -> None:
            info = replace(numpy_info(), kernels=frozenset({"refine_logits"}), features=frozenset({"refined-as-dense"}))
            super().__init__(replace(info, batch_invariant_rows={"matmul_dense": 64}))

    monkeypatch.setattr(device, "MEANINGS", {**MEANINGS, "refine_logits": refine})
    found = judge(Refining, "test_refined_logits_are_those_of_dense")
    assert (f"logits of {other_rows} rows differ from those of matmul_dense" in found) == (other_rows > 0)
    assert bool(found) == (other_rows > 0)


def test_partitions_respect_the_limit() -> None:
    for limit in (2, 5, 8, 64, ANY_ROWS):
        assert max(max(steps) for steps in partitions(limit)) == min(limit, BATCH_ROWS)


@pytest.mark.parametrize("rows", [{"attention": 0}, {"attention": 2.5}, {3: 8}])
def test_a_number_of_rows_that_is_none(rows: Any) -> None:
    from bitnet_hal.discovery.claims import validate
    from bitnet_hal.reference.plugin import NumpyBackend

    info = replace(numpy_info(), batch_invariant_rows=rows)
    assert "batch-invariant rows" in validate(NumpyBackend(), info, [])


def test_kernels_that_are_not_declared_have_one_row() -> None:
    info = DeviceInfo("x", 0, "x", numpy_info().type, batch_invariant_rows={"attention": 8, "rms_norm": 64})
    assert info.invariant_rows(["attention", "rms_norm"]) == 8
    assert info.invariant_rows(["rms_norm"]) == 64
    assert info.invariant_rows(["attention", "top_k"]) == 1
