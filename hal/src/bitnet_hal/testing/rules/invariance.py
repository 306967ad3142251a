"""The rule about batch invariance: the bits of a row depend on that row alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from bitnet_hal.device import ANY_ROWS, View
from bitnet_hal.kernels.catalogue import CATALOGUE, DENSE_TYPES
from bitnet_hal.testing.cases.case import BATCH_ROWS, Array, Arrays, Case, CaseLaunch
from bitnet_hal.testing.cases.registry import batches_of
from bitnet_hal.testing.workbench import Bench

FEW = 24
"""Rows that are cut into steps of 2 to 8 rows, so that each row is once first, once in the middle and once last."""
SOME = 64
"""Rows that are cut into steps of up to 64 rows."""
PROMPTS = ((BATCH_ROWS,), (100, 50), (37, 113))
"""Sizes of a prompt's steps: a single step, and two ways to cut the prompt."""


def partitions(limit: int) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of consecutive steps of at most `limit` rows, in at least one case of irregular sizes."""
    regular = [(FEW, rows) for rows in range(2, 9)] + [(SOME, rows) for rows in (9, 16, 33, SOME)]
    for total, rows in regular:
        if rows <= limit:
            yield (rows,) * (total // rows) + ((total % rows,) if total % rows else ())
    if limit >= 8:
        yield (1, 7, 3, 8, 5)
    if limit == ANY_ROWS:
        yield from PROMPTS


@dataclass(frozen=True)
class BatchCase:
    """A case of BATCH_ROWS rows that is computed in several steps.

    by_row: bindings with one part for each row of the launch. carried: written bindings that steps share, such as
    states and caches.
    """

    case: Case
    launch: CaseLaunch
    by_row: tuple[str, ...]
    carried: tuple[str, ...]

    @classmethod
    def of(cls, case: Case) -> BatchCase:
        """Build the case."""
        launch = case.launch()
        by_row = []
        carried = []
        for binding in case.spec.bindings:
            size = launch.arrays[binding.name].size
            if binding.shape.startswith("[rows") and size >= BATCH_ROWS and size % BATCH_ROWS == 0:
                by_row.append(binding.name)
            elif binding.access != "r":
                carried.append(binding.name)
        return cls(case, launch, tuple(by_row), tuple(carried))

    def part(self, start: int, rows: int) -> CaseLaunch:
        """Return the launch of rows start..start + rows - 1."""
        arrays = dict(self.launch.arrays)
        for name in self.by_row:
            arrays[name] = arrays[name].reshape(BATCH_ROWS, -1)[start : start + rows].reshape(-1)
        return CaseLaunch({**self.launch.params, "rows": rows}, arrays, self.launch.constants)

    def run(self, bench: Bench, steps: Sequence[int]) -> tuple[Arrays, Arrays]:
        """Run consecutive steps of these sizes from the first row on.

        Return the written bindings by row, [rows, ...], and the carried ones after the last step, as bytes.
        """
        spec = self.case.spec
        written = [b.name for b in spec.bindings if b.access != "r" and b.name in self.by_row]
        shared: dict[str, View] = {
            b.name: bench.put(self.launch.arrays[b.name]) for b in spec.bindings if b.name not in self.by_row
        }
        found: dict[str, list[Array]] = {name: [] for name in written}
        start = 0
        for rows in steps:
            launch = self.part(start, rows)
            prepared = bench.prepare(spec, launch, shared)
            prepared.run(bench.device)
            for name in written:
                array = bench.take(f"{self.case.id}: {name}", prepared.views[name], launch.arrays[name].dtype)
                found[name].append(array.reshape(rows, -1).copy())
            start += rows
        carried = {name: bench.read(shared[name]) for name in self.carried}
        bench.tidy()
        return {name: np.concatenate(parts) for name, parts in found.items()}, carried


class InvarianceRules:
    """The rule about DeviceInfo.batch_invariant_rows."""

    def test_rows_are_batch_invariant(self, bench: Bench, kernel: str) -> None:
        """A row must have the same bits alone, and first, last and in the middle of as many rows as the device declares
        for the kernel; states and caches must not depend on how a prompt is cut into steps.

        Launches share the tuning of the declared rows, except for any number of rows and with the feature
        "batch-invariant": each has its own tuning then.
        """
        cases = batches_of(kernel)
        limit = bench.device.info.invariant_rows([kernel])
        if not cases:
            pytest.skip(f"{kernel} sums nothing over a row, or is a fused kernel for some numbers of rows only")
        if limit < 2:
            pytest.skip(f"the device declares no batch-invariant rows for {kernel}")
        own_tunings = limit == ANY_ROWS or "batch-invariant" in bench.device.info.features
        bench.launcher.tuned_rows = 0 if own_tunings else limit
        try:
            differences = [first_difference(bench, case, limit) for case in cases]
        finally:
            bench.launcher.tuned_rows = 0
        assert not any(differences), "\n".join(filter(None, differences))

    def test_refined_logits_are_those_of_dense(self, bench: Bench) -> None:
        """With the feature "refined-as-dense", refine_logits must compute the bits of matmul_dense in launches of up to
        as many rows as that is batch-invariant for."""
        if "refined-as-dense" not in bench.device.info.features:
            pytest.skip("the device does not have the feature")
        limit = min(bench.device.info.invariant_rows(["matmul_dense"]), SOME)
        bench.launcher.tuned_rows = limit
        try:
            for case in batches_of("refine_logits"):
                for rows in sorted({1, min(8, limit), min(9, limit), limit}):
                    _compare_refined(bench, BatchCase.of(case).part(0, rows))
        finally:
            bench.launcher.tuned_rows = 0


def _compare_refined(bench: Bench, refine: CaseLaunch) -> None:
    """Compute all logits of a launch of refine_logits, also with matmul_dense, and compare their bits."""
    bounds = np.full_like(refine.arrays["bound"], np.nan)  # so that no logit stays approximate
    refine = CaseLaunch(refine.params, {**refine.arrays, "bound": bounds}, refine.constants)
    refined = bench.prepare(CATALOGUE["refine_logits"], refine)
    sizes = {name: refine.params[name] for name in ("rows", "outs", "width")}
    params = {**sizes, "y_stride": refine.params["stride"], "y_first": 0}
    arrays = {"x": refine.arrays["x"], "w": refine.arrays["w"], "y": refine.arrays["logits"]}
    dense = bench.prepare(CATALOGUE["matmul_dense"], CaseLaunch(params, arrays, {"DTYPE": DENSE_TYPES.index("f16")}))
    refined.run(bench.device)
    dense.run(bench.device)
    got = bench.take("refine_logits", refined.views["logits"], np.uint32)
    wanted = bench.take("matmul_dense", dense.views["y"], np.uint32)
    bench.tidy()
    wrong = np.flatnonzero(got != wanted)
    assert not wrong.size, (
        f"{wrong.size} of {got.size} logits of {sizes['rows']} rows differ from those of matmul_dense"
    )


def first_difference(bench: Bench, case: Case, limit: int) -> str:
    """Return the first difference between rows in steps of one and of up to `limit` rows, "" if there is none."""
    batch = BatchCase.of(case)
    most = SOME if limit > 8 else FEW
    alone, _ = batch.run(bench, (1,) * most)
    kept: dict[int, Arrays] = {}
    for steps in partitions(limit):
        together, carried = batch.run(bench, steps)
        if problem := _row_difference(case, steps, alone, together, most):
            return problem
        total = sum(steps)
        if total > most:
            continue
        expected = kept.setdefault(total, batch.run(bench, (1,) * total)[1]) if carried else {}
        for name, array in carried.items():
            if not np.array_equal(array, expected[name]):
                return f"{case.id}: {name} after steps of {_sizes(steps)} rows differs from that after steps of one row"
    return ""


def _row_difference(case: Case, steps: Sequence[int], alone: Arrays, together: Arrays, most: int) -> str:
    for name, array in together.items():
        count = min(len(array), most)
        got = np.ascontiguousarray(array[:count]).view(np.uint8).reshape(count, -1)
        wanted = np.ascontiguousarray(alone[name][:count]).view(np.uint8).reshape(count, -1)
        wrong = np.flatnonzero((got != wanted).any(axis=1))
        if wrong.size:
            return (
                f"{case.id}: {name} of row {wrong[0]} in steps of {_sizes(steps)} rows differs from the same row alone "
                f"({wrong.size} of {count} rows differ)"
            )
    return ""


def _sizes(steps: Sequence[int]) -> str:
    return str(steps[0]) if len(set(steps[:-1])) == 1 and len(steps) > 3 else ", ".join(map(str, steps))
