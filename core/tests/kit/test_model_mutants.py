"""A fault in one kernel changes what the shipped model says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bitnet_core.reference import device
from bitnet_core.reference.meanings import MEANINGS


def test_a_model_that_forgets_is_rejected(judge: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(a: Any, p: Any, c: Any) -> None:
        """Rows see one position less than they should, past the fourth."""
        step = a["step"].copy().reshape(-1, 4)
        step[:, 1] -= step[:, 1] > 4
        MEANINGS["attention"]({**a, "step": step.reshape(-1)}, p, c)

    monkeypatch.setattr(device, "MEANINGS", {**MEANINGS, "attention": forgetful})
    verdict = judge(device.NumpyDevice, "test_the_shipped_model_says_what_it_should", kv_dtype="f16")
    assert "the model should say" in verdict
