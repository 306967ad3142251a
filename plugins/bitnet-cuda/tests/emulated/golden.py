"""A tiny Bonsai 2 on the emulated GPU says what numpy says, alone and among others."""

from __future__ import annotations

import sys
from pathlib import Path

import bitnet_core
import pytest
from bitnet_core.engine.schedule.prompt_steps import PromptScheduler
from bitnet_core.engine.schedule.results import RequestOutput
from bitnet_cuda.describe import device_infos
from bitnet_cuda.device import CudaDevice

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[3] / "benchmarks")]

import delta_error  # noqa: E402 - found through the paths above
from emulator import build  # noqa: E402

GOLDEN = HERE.parents[3] / "core" / "tests" / "golden" / "bonsai2" / "rotated-PTQ1_0.gguf"
PROMPTS = [[38 * n % 300 for n in range(1, 9)], [38 * n % 300 for n in range(1, 80)]]
"""Those after which every token is decided by more than int8 codes that move change."""

build.use()  # in this process alone: ../test_emulated.py starts it


@pytest.mark.parametrize("block", [32, 128])
def test_greedy_text(block: int) -> None:
    texts = []
    for device in ("numpy", "cuda"):
        with bitnet_core.load(GOLDEN, device, activation_group_size=block) as model:
            texts.append([one.tokens for one in model.generate(PROMPTS, max_tokens=12, temperature=0)])
    assert texts[0] == texts[1]
    assert all(len(tokens) == 12 for tokens in texts[0])


def test_prompt_steps_that_are_queued_ahead_change_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    read = PromptScheduler.read

    def counted(scheduler: PromptScheduler) -> list[RequestOutput]:
        nonlocal most
        most = max(most, len(scheduler.in_flight))
        return read(scheduler)

    monkeypatch.setattr(PromptScheduler, "read", counted)
    prompts = [PROMPTS[0], PROMPTS[1][:40], PROMPTS[1]]
    texts = []
    for device in ("numpy", "cuda"):
        with bitnet_core.load(GOLDEN, device, activation_group_size=32, prefill_chunk=32) as model:
            texts.append([one.tokens for one in model.generate(prompts, max_tokens=4, temperature=0)])
    assert texts[0] == texts[1]
    assert most == 2


def test_deterministic_texts_are_those_that_each_has_alone() -> None:
    """Steps of other numbers of rows, and prompts that are cut elsewhere."""
    with bitnet_core.load(GOLDEN, "cuda", deterministic=True, max_sequences=2) as model:
        together = [one.tokens for one in model.generate(PROMPTS, max_tokens=6, temperature=0)]
        launches = model.engine.kernel_launches
    with bitnet_core.load(GOLDEN, "cuda", deterministic=True, max_sequences=2) as model:
        alone = [model.generate(prompt, max_tokens=6, temperature=0).tokens for prompt in PROMPTS]
    assert together == alone
    assert launches["rope_attention_mixed"]
    assert not launches["rope_store_kv"]


@pytest.mark.parametrize("rows", [64, 200])
def test_the_delta_rule_stays_near_float64_for_8192_positions(rows: int) -> None:
    """Row by row (64 rows are few), and in chunks, which steps of 200 rows cut anywhere."""
    device = CudaDevice(device_infos()[0])
    found = delta_error.errors(device, delta_error.drawn(8192, 2, 1, 32, 16), rows)
    device.close()
    assert max(found.values()) < 2e-6, found
