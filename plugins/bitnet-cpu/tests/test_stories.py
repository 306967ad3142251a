"""Every code path generates the shipped model's golden stories, token for token."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import bitnet_core
import pytest
from bitnet_core.testing.model import golden_stories
from bitnet_cpu.describe import usable_paths

ARM = platform.machine().lower() in ("aarch64", "arm64")
PATHS = ["neon-i8mm", "neon-dotprod", "neon"] if ARM else ["amx", "avx512vnni", "avx-vnni", "avx2"]


@pytest.mark.parametrize("path", [*PATHS, "portable"])
def test_golden_stories(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path not in usable_paths():
        pytest.skip(f"this CPU, or its operating system, does not run {path}")
    monkeypatch.setenv("BITNET_CPU_KERNEL", path)
    with bitnet_core.load("stories", "cpu") as model:
        assert model.device.info.extra["active_kernel"] == path
        for story in golden_stories():
            result = model.generate(story.prompt_ids, max_tokens=64)
            assert tuple(result.tokens) == story.ids, story.prompt
            assert result.text == story.text


def test_a_state_saved_on_another_device_goes_on_here(tmp_path: Path) -> None:
    """Keys and values of the reference device give the same text, without computing the prompt again."""
    story = golden_stories()[0]
    prompt, expected = story.prompt_ids, tuple(story.ids[:8])
    with bitnet_core.load("stories", "numpy") as there:
        assert there.generate(prompt, max_tokens=8).tokens == expected
        assert there.save_state(tmp_path / "state") >= 1
    with bitnet_core.load("stories", "cpu") as here:
        assert here.load_state(tmp_path / "state") >= 1
        text = here.generate(prompt, max_tokens=8)
    assert (text.tokens, text.cached_tokens) == (expected, 64)


@pytest.mark.parametrize("path", [*PATHS, "portable"])
def test_guessed_texts_are_those_without_guesses(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stories that are told once more, so that many guesses are right."""
    if path not in usable_paths():
        pytest.skip(f"this CPU, or its operating system, does not run {path}")
    monkeypatch.setenv("BITNET_CPU_KERNEL", path)
    with (
        bitnet_core.load("stories", "cpu", speculate="off", stream_interval=1e-4) as plain,
        bitnet_core.load("stories", "cpu", speculate="lookup", stream_interval=1e-4) as looking,
    ):
        for story in golden_stories():
            prompt = [*story.prompt_ids, *story.ids, *story.prompt_ids]
            assert looking.generate(prompt, max_tokens=64).tokens == plain.generate(prompt, max_tokens=64).tokens
        figures = looking.stats()
    assert figures["draft_tokens"] >= figures["accepted_tokens"] > 20


@pytest.mark.parametrize("arguments", [("run", "-n", "2", "Once"), ("run", "--kv-cache-size", "1", "Once")])
def test_the_binding_says_nothing_at_the_end(arguments: tuple[str, ...]) -> None:
    """nanobind reports objects that a program leaves behind; one that fails leaves none either."""
    command = [sys.executable, "-c", "from bitnet_core.cli.app import main; main()", *arguments, "-d", "cpu"]
    assert "nanobind" not in subprocess.run(command, capture_output=True, text=True, check=False).stderr
