"""bitnet.cpp opens the I2_S files that we write, and its predictions match ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.api import Model, load
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary import i2_s
from bitnet_core.formats.ternary.codes import unpack
from bitnet_core.testing.model import golden_stories
from safetensors.numpy import load_file, save_file

PROGRAMS = Path(os.environ.get("BITNET_CPP_BIN", "nowhere"))
pytestmark = pytest.mark.skipif(
    not (PROGRAMS / "llama-perplexity").is_file(),
    reason="BITNET_CPP_BIN does not name a folder with bitnet.cpp's llama-cli and llama-perplexity",
)

SHIPPED = Path(str(files("bitnet_core") / "data" / "stories.gguf"))
WINDOW = 64
KL, COSINE = 5e-3, 0.999
"""Mean Kullback-Leibler divergence from our distribution to theirs, and the least cosine of log-probabilities."""


def bitnet_cpp(program: str, *arguments: object) -> str:
    command = [str(PROGRAMS / program), *map(str, arguments), "-t", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def peer_log_probabilities(
    model: Path, text: str, folder: Path
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Return bitnet.cpp's tokens i32[n, WINDOW], and log-probabilities f64[n, WINDOW / 2 - 1, V] after the second half
    of each window."""
    (folder / "text.txt").write_text(text)
    size = ("-c", WINDOW, "-b", WINDOW)
    bitnet_cpp(
        "llama-perplexity", "-m", model, "-f", folder / "text.txt", *size, "--kl-divergence-base", folder / "out"
    )
    content = (folder / "out").read_bytes()
    window, vocab, n = np.frombuffer(content, "<i4", 3, 8).tolist()
    tokens = np.frombuffer(content, "<i4", n * window, 20).reshape(n, window)
    rows = np.frombuffer(content, "<u2", offset=20 + tokens.nbytes).reshape(n, window // 2 - 1, -1)
    step, least = np.moveaxis(np.ascontiguousarray(rows[:, :, :4]).view("<f4").astype(np.float64), 2, 0)
    return tokens, rows[:, :, 4 : 4 + vocab] * step[:, :, None] + least[:, :, None]


def disagreement(ours: Model, tokens: npt.NDArray[np.int32], theirs: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return (mean KL divergence, least cosine) over the rows of `theirs`."""
    divergences, cosines = [], []
    for window, expected in zip(tokens, theirs, strict=True):
        logits = ours.logits([ours.tokenizer.bos_id, *window[1:].tolist()])  # each window starts with bos
        found = logits[WINDOW // 2 : -1].astype(np.float64)
        found -= found.max(axis=1, keepdims=True)
        found -= np.log(np.exp(found).sum(axis=1, keepdims=True))
        divergences += (np.exp(found) * (found - expected)).sum(axis=1).tolist()
        found = np.maximum(found, expected.min(axis=1, keepdims=True))  # theirs are cut off 16 below the largest
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        cosines += ((found * expected).sum(axis=1) / lengths).tolist()
    return float(np.mean(divergences)), min(cosines)


def shipped(folder: Path, make_folder: Callable[..., Path]) -> Path:
    return SHIPPED


def shipped_and_back(folder: Path, make_folder: Callable[..., Path]) -> Path:
    convert(open_model(SHIPPED), folder / "packed", "safetensors")
    return i2_s_of(folder / "packed", folder)


def random_model(**options: object) -> Callable[[Path, Callable[..., Path]], Path]:
    def make(folder: Path, make_folder: Callable[..., Path]) -> Path:
        masters = make_folder(**options)
        tensors = load_file(masters / "model.safetensors")
        for name in {"model.embed_tokens.weight", "lm_head.weight"} & set(tensors):
            tensors[name] = tensors[name] * np.float16(0.06)  # so that logits leave several tokens a chance
        save_file(tensors, masters / "model.safetensors")
        return i2_s_of(masters, folder)

    return make


def i2_s_of(source: Path, folder: Path) -> Path:
    return convert(open_model(source), folder / "model.gguf", "i2_s").path


@pytest.mark.parametrize(
    "make",
    [shipped, shipped_and_back, random_model(), random_model(hidden_act="silu"), random_model(llama=True)],
    ids=["shipped", "shipped and back", "bitnet-b1.58", "bitnet", "llama"],
)
def test_it_predicts_what_we_predict(
    make: Callable[..., Path], make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    path = make(tmp_path, make_folder)
    with load(path, "numpy", layout="A") as ours:
        text = "They'll see:\n\n12345 (Hi)  naïve the hello. "
        if make in (shipped, shipped_and_back):
            text += ours.generate("Once upon a time", max_tokens=250).text
        text *= 12
        tokens, theirs = peer_log_probabilities(path, text, tmp_path)
        ids = ours.tokenizer.encode(text, add_bos=True)
        assert len(tokens) >= 4
        assert tokens.reshape(-1).tolist() == ids[: tokens.size]
        divergence, cosine = disagreement(ours, tokens, theirs)
    assert divergence <= KL
    assert cosine >= COSINE


def test_it_tells_the_same_stories(tmp_path: Path) -> None:
    """The golden stories, in which each token has a clear margin over the next."""
    for story in golden_stories():
        (tmp_path / "prompt").write_text(story.prompt)
        prompt = ("-f", tmp_path / "prompt", "-n", len(story.ids), "--temp", 0, "--no-display-prompt")
        told = bitnet_cpp("llama-cli", "-m", SHIPPED, *prompt)
        assert told.strip().removesuffix("[end of text]").strip() == story.text.strip()


def test_the_comparison_notices_another_layout(tmp_path: Path) -> None:
    """The shipped model with its codes in layout B, which bitnet.cpp on x86 cannot recognise."""
    file, content = GGUFFile(SHIPPED), bytearray(SHIPPED.read_bytes())
    for tensor in file.tensors.values():
        if tensor.type.name == "I2_S":
            codes = unpack(i2_s.decode(file.data(tensor), *tensor.shape).codes, tensor.shape[1])
            parts = codes.reshape(-1, 4, 16).swapaxes(0, 1)
            packed = parts[0] << 6 | parts[1] << 4 | parts[2] << 2 | parts[3]
            content[tensor.offset : tensor.offset + packed.size] = packed.tobytes()
    other = tmp_path / "b.gguf"
    other.write_bytes(content)
    with load(SHIPPED, "numpy") as ours:
        text = ours.generate("Once upon a time", max_tokens=200).text * 2
        divergence, cosine = disagreement(ours, *peer_log_probabilities(other, text, tmp_path))
    assert divergence > 100 * KL
    assert cosine < 0.99
