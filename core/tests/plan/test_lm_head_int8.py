"""The int8 copy of the head with the option `deterministic`."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.kernels import LM_HEAD_INT8
from bitnet_hal.reference.describe import numpy_info


@pytest.mark.parametrize("refined", [True, False])
def test_deterministic_steps_use_it_if_its_logits_have_the_bits_of_all_logits(faulty: Any, refined: bool) -> None:
    features = frozenset({"refined-as-dense"}) if refined else frozenset[str]()
    device = faulty(kernels=numpy_info().kernels | LM_HEAD_INT8, features=features)
    options = EngineOptions(max_sequences=2, prefill_chunk=16, context=128, lm_head_int8="on", deterministic=True)
    with closing(Engine(SyntheticSource("tiny"), device, options)) as engine:
        request = engine.add_request([1, 2, 3], max_tokens=4)
        while not request.finish_reason:
            engine.step()
        assert bool(engine.weights.lm_head_int8) == refined
        assert bool(engine.kernel_launches["refine_logits"]) == refined
        assert bool(engine.kernel_launches["matmul_dense"]) != refined
