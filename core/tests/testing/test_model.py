"""Faulty kernels: the rules about whole models reject them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bitnet_hal.reference import device
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.reference.meanings import MEANINGS
from bitnet_hal.rounding import ceil_div


def test_a_model_that_forgets_is_rejected(judge: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(a: Any, p: Any, c: Any) -> None:
        """Rows see one position less than they should, past the fourth."""
        step = a["step"].copy().reshape(-1, 4)
        step[:, 1] -= step[:, 1] > 4
        MEANINGS["attention"]({**a, "step": step.reshape(-1)}, p, c)

    monkeypatch.setattr(device, "MEANINGS", {**MEANINGS, "attention": forgetful})
    verdict = judge(device.NumpyDevice, "test_the_shipped_model_says_what_it_should", kv_cache_type="f16")
    assert "after the prompt differs: expected" in verdict


def unnormed_heads(a: Any, p: Any, c: Any) -> None:
    """The norm of the heads is left out."""
    MEANINGS["rope_store_kv"](a, p, {**c, "QKNORM": 0})


def one_scale(a: Any, p: Any, c: Any) -> None:
    """The first block's scale counts for the whole row."""
    scales = a["wscale"].reshape(-1, ceil_div(int(p["width"]), c["BLOCK"]))
    MEANINGS["matmul_ternary_block"]({**a, "wscale": np.repeat(scales[:, 0], scales.shape[1])}, p, c)


def next_row(a: Any, p: Any, c: Any) -> None:
    """The embedding of the next token."""
    step = a["step"].copy().reshape(-1, 4)
    step[:, 0] += 1
    MEANINGS["embed_rows_ternary"]({**a, "step": step.reshape(-1)}, p, c)


def neighbours_scale(a: Any, p: Any, c: Any) -> None:
    """Activations are multiplied with the scale of the neighbouring 32 columns."""
    MEANINGS["glu_norm_quantize"](a, p, c)
    a["scale"][:] = np.roll(a["scale"], 1)


def every_id(a: Any, p: Any, c: Any) -> None:
    """Ids without a token may be chosen."""
    MEANINGS["argmax_advance"](a, {**p, "vocab": p["stride"]}, c)


@pytest.mark.parametrize(
    ("kernel", "fault"),
    [
        ("rope_store_kv", unnormed_heads),
        ("matmul_ternary_block", one_scale),
        ("embed_rows_ternary", next_row),
        ("glu_norm_quantize", neighbours_scale),
        ("argmax_advance", every_id),
    ],
)
def test_a_faulty_model_with_scales_of_blocks_is_rejected(
    judge: Callable[..., str], monkeypatch: pytest.MonkeyPatch, kernel: str, fault: Callable[..., None]
) -> None:
    class Faulty(NumpyDevice):
        """The reference engine of the rule stays right."""

        def _run(self, launch: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(device, "MEANINGS", {**MEANINGS, kernel: fault})
                super()._run(launch)

    verdict = judge(Faulty, "test_a_model_with_scales_of_blocks_says_what_numpy_says")
    assert ("must never be chosen" if fault is every_id else "the device chose") in verdict


def test_a_device_whose_rows_differ_beside_others_is_rejected(
    judge: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def together(a: Any, p: Any, c: Any) -> None:
        """Rows are multiplied by one call of BLAS."""
        rows, outs, width = (int(p[name]) for name in ("rows", "outs", "width"))
        table = a["w"][: outs * width * 2].view("<f2").astype(np.float32).reshape(outs, width)
        a["y"][: rows * outs] = (a["x"][: rows * width].reshape(rows, width) @ table.T).reshape(-1)

    monkeypatch.setattr(device, "MEANINGS", {**MEANINGS, "matmul_dense": together})
    verdict = judge(NumpyDevice, "test_a_row_is_the_same_beside_others", kv_cache_type="f32")
    assert "differs from the same row alone by up to" in verdict


def test_a_device_whose_texts_depend_on_others_is_rejected(
    judge: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crowded(a: Any, p: Any, c: Any) -> None:
        """Every third logit of more than two rows is too large."""
        MEANINGS["matmul_dense"](a, p, c)
        if int(p["rows"]) > 2:
            a["y"][::3] += np.float32(1)

    monkeypatch.setattr(device, "MEANINGS", {**MEANINGS, "matmul_dense": crowded})
    verdict = judge(NumpyDevice, "test_a_text_does_not_depend_on_other_requests")
    assert "depends on others: token" in verdict
