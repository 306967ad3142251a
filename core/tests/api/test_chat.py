"""Chat with a thinking model: template variables, reasoning, its limit, and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core import load
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_hal.errors import UsageError

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3" / "qwen3-untied" / "PQ2_0.gguf"
HIDDEN, VOCAB = 128, 320
ASK = [{"role": "user", "content": "why"}]


@pytest.fixture
def thinker(tmp_path: Path) -> Path:
    """A random model with Qwen3's tokenizer; asked to think, its prompt ends with <think>."""
    keys = {key: value for key, value in GGUFFile(GOLDEN).metadata.items() if key.startswith("tokenizer.")}
    keys["tokenizer.chat_template"] += (
        "{%- if enable_thinking is defined and enable_thinking %}{{- '<think>\\n' }}{%- endif %}"
    )
    llama = {"context_length": 256, "embedding_length": HIDDEN, "block_count": 1, "feed_forward_length": HIDDEN}
    llama |= {"attention.head_count": 2, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4}
    draw = np.random.default_rng(0)
    tensors: dict[str, tuple[str, Any]] = {
        "token_embd": ("F16", draw.standard_normal((VOCAB, HIDDEN)).astype("<f2")),
        "output_norm": ("F32", np.ones(HIDDEN, "<f4")),
        "blk.0.attn_norm": ("F32", np.ones(HIDDEN, "<f4")),
        "blk.0.ffn_norm": ("F32", np.ones(HIDDEN, "<f4")),
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        tensors[f"blk.0.{name}"] = ("F32", (draw.integers(-1, 2, (HIDDEN, HIDDEN)) * 0.05).astype("<f4"))
    path = tmp_path / "thinker.gguf"
    with GGUFWriter(path) as writer:
        writer.metadata("general.architecture", "llama")
        for key, value in {**{f"llama.{name}": value for name, value in llama.items()}, **keys}.items():
            writer.metadata(key, value)
        for name, (kind, array) in tensors.items():
            writer.tensor(f"{name}.weight", array.shape, kind, array.nbytes)
        for name, (_, array) in tensors.items():
            writer.write(f"{name}.weight", [array])
    return path


def test_the_limit_makes_it_answer(thinker: Path) -> None:
    with load(thinker, "numpy") as model:
        how: dict[str, Any] = {"enable_thinking": True, "max_tokens": 30, "temperature": 30.0, "seed": 3}
        how["logit_bias"] = dict.fromkeys((312, 314, 315, 316), -1e5)  # it would never end by itself
        free = model.chat(ASK, **how)
        assert free.text == ""
        assert len(free.reasoning) > 10
        ended = model.chat(ASK, reasoning_budget=8, **how)
        assert ended.tokens[:8] == free.tokens[:8]
        assert 316 in ended.tokens[8:12]
        assert len(ended.tokens) == 30
        assert ended.text
        assert ended.text.strip("\n") not in ended.reasoning
        chunks = list(model.chat(ASK, reasoning_budget=8, stream=True, **how))
        assert "".join(chunk.text for chunk in chunks) == ended.text
        assert "".join(chunk.reasoning for chunk in chunks).rstrip("\n") == ended.reasoning


def test_an_answer_without_reasoning(thinker: Path) -> None:
    with load(thinker, "numpy") as model:
        ids = model.chat_template.chat_tokens(ASK, enable_thinking=False)
        assert 316 in ids
        reply = model.chat(ASK, enable_thinking=False, max_tokens=5)
        assert reply.reasoning == ""
        assert reply.prompt_tokens == len(ids)


def test_what_the_model_does_not_know_is_refused(thinker: Path) -> None:
    with load(thinker, "numpy") as model, pytest.raises(UsageError, match="does not support tools"):
        model.chat(ASK, tools=[{"name": "f"}])
    with load("stories", "numpy") as model:
        with pytest.raises(UsageError, match="does not support enable_thinking"):
            model.chat(ASK, enable_thinking=False)
        with pytest.raises(UsageError, match="reasoning_budget"):
            model.chat(ASK, reasoning_budget=5)


def test_the_command_line(thinker: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run = _program(capsys, monkeypatch)
    ask = ("run", "why", "--think", "--reasoning-budget", "4", "-n", "12", "-m", str(thinker))
    ask += ("--temperature", "30", "--seed", "5")
    found = json.loads(run(*ask, "--json")[0])
    assert found["reasoning"]
    assert found["text"]
    assert found["reasoning"] not in found["text"]
    out, err = run(*ask)
    assert out.rstrip("\n") == found["text"].rstrip("\n")
    out, err = run("run", "why", "--raw", "--think", "-m", str(thinker))
    assert "exclude each other" in err


def test_a_models_own_sampling_is_shown_and_greedy_must_be_asked_for(
    thinker: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(thinker, "numpy") as model:
        assert model.defaults.values.temperature == 0
        greedy = model.generate("why", max_tokens=12).text
    _with_key(thinker, "general.sampling.temp", 50.0)
    run = _program(capsys, monkeypatch)
    out, err = run("run", "why", "--raw", "-n", "12", "--seed", "1", "-m", str(thinker))
    assert "temperature 50: from the model file" in err
    assert out != greedy + "\n"
    out, err = run("run", "why", "--raw", "-n", "12", "--temperature", "0", "-m", str(thinker))
    assert "from the model file" not in err
    assert out == greedy + "\n"


def _with_key(path: Path, key: str, value: Any) -> None:
    file = GGUFFile(path)
    metadata, tensors = dict(file.metadata) | {key: value}, [(t, file.data(t).copy()) for t in file.tensors.values()]
    with GGUFWriter(path) as writer:
        for name, content in metadata.items():
            writer.metadata(name, content)
        for tensor, data in tensors:
            writer.tensor(tensor.name, tensor.shape, tensor.type.name, data.size)
        for tensor, data in tensors:
            writer.write(tensor.name, [data])


def _program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str]]:
    from bitnet_core.cli.app import main

    def run(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["bitnet", *arguments, *(() if "-d" in arguments else ("-d", "numpy"))])
        with pytest.raises(SystemExit):
            main()
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run
