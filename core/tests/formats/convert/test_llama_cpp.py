"""llama.cpp opens the TQ files that we write, and its predictions match ours, within the rules that it supports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.convert.target import Target
from bitnet_core.formats.gguf.source import GGUFSource
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions
from bitnet_core.tokenizer import load_tokenizer
from bitnet_hal.reference.device import NumpyDevice
from safetensors.numpy import load_file, save_file

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

TEXT = "They'll see:\n\n12345 (Hi)  naïve the hello. " * 2
KL, COSINE = 1e-3, 0.9999


def log_probabilities(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    wide = np.asarray(logits, np.float64)
    wide = wide - wide.max(axis=1, keepdims=True)
    found: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return found


def disagreement(path: Path, activation: Any) -> tuple[float, float]:
    """Return (mean KL divergence, least cosine of log-probabilities) of llama.cpp and of bitnet with this
    activation."""
    source = open_model(path)
    ids = load_tokenizer(source.tokenizer).encode(TEXT, add_bos=True)
    theirs = llama_cpp.Llama(str(path), n_ctx=128, logits_all=True, n_threads=1, n_threads_batch=1, verbose=False)
    assert theirs.tokenize(TEXT.encode(), add_bos=True, special=False) == ids
    theirs.eval(ids)
    expected = log_probabilities(theirs.scores[: len(ids)])
    assert isinstance(source, GGUFSource)
    source._config = replace(source.config, activation=activation)
    engine = Engine(source, NumpyDevice(), EngineOptions(context=128, max_sequences=1))
    found = log_probabilities(engine.logits(ids))
    engine.close()
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    divergence = (np.exp(found) * (found - expected)).sum(axis=1).mean()
    return float(divergence), float(((found * expected).sum(axis=1) / lengths).min())


@pytest.mark.parametrize("target", ["tq2_0", "tq1_0"])
@pytest.mark.parametrize(("llama", "activation"), [(False, "silu"), (True, "silu"), (False, "relu2")])
def test_it_predicts_what_we_predict(
    make_folder: Callable[..., Path], tmp_path: Path, target: Target, llama: bool, activation: str
) -> None:
    """llama.cpp runs a model with squared ReLU with SiLU; the conversion warns about that."""
    masters = make_folder(llama=llama, hidden_act=activation)
    tensors = load_file(masters / "model.safetensors")
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & set(tensors):
        tensors[name] = tensors[name] * np.float16(0.06)  # so that logits leave several tokens a chance
    save_file(tensors, masters / "model.safetensors")
    done = convert(open_model(masters), tmp_path / "model.gguf", target)
    assert ("llama.cpp-activation" in [finding.code for finding in done.findings]) == (activation == "relu2")
    divergence, cosine = disagreement(done.path, "silu")
    assert divergence <= KL
    assert cosine >= COSINE
    if activation == "relu2":
        assert disagreement(done.path, "relu2")[0] > 100 * KL
