"""transformers loads our converted folders, encodes the same ids, and computes the same logits."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.api import load
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.i2_s_layout.self_test import SELF_TEST_TEXT
from bitnet_hal.reference.meanings import MEANINGS

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
bitnet = pytest.importorskip("transformers.integrations.bitnet", reason="transformers has no BitNet layers")

TOLERANCE = 1e-4
BOUNDARY = 5e-4
"""How far from a rounding boundary, in steps of the code, a value may be whose codes differ: 66 f32 spacings at 127."""
LINEARS = (0, 0, 0, 1, 2, 2, 3)
"""Which of a layer's four quantized activations q, k, v, o, gate, up and down multiply."""
TALK = [{"role": "user", "content": "Hello there"}]
TEXTS = (SELF_TEST_TEXT, "", " ", "They'll say:\n\n12345 (Hi)  naïve 🙂", "a <|eot_id|> b")

Codes = list[npt.NDArray[np.int8]]


class OurQuantizer:
    """A replacement of transformers' ActQuant that records differing codes, and can use ours."""

    def __init__(self, codes: Codes, take_ours: bool) -> None:
        self.codes, self.take_ours, self.calls = codes, take_ours, 0
        self.flips: set[tuple[int, int]] = set()  # quantized activation, token
        self.farthest = 0.0

    def apply(self, x: Any) -> Any:
        """Quantize f32[1, T, K] and scale it back (transformers' formula)."""
        scale = 127 / x.abs().max(dim=-1, keepdim=True).values.clamp(min=1e-5)
        steps = x * scale
        own = steps.round().clamp(-128, 127)
        layer, call = divmod(self.calls, len(LINEARS))
        activation = 4 * layer + LINEARS[call]
        ours = torch.from_numpy(self.codes[activation].astype(np.float32))[None, :, : x.shape[-1]]
        flipped = own != ours
        self.flips |= {(activation, int(token)) for token in flipped.any(dim=-1).nonzero()[:, 1]}
        if self.take_ours and flipped.any():  # with its own codes the values differ too, after the first flip
            self.farthest = max(self.farthest, float((steps - (own + ours) / 2).abs()[flipped].max()))
        self.calls += 1
        return (ours if self.take_ours else own) / scale


def our_logits_and_codes(model: Any, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Codes]:
    """Return the logits of every token at once, and the codes of every quantized activation in order of computation."""
    codes: Codes = []
    for name in ("rms_norm_quantize", "glu_norm_quantize"):

        def watched(a: Any, p: Any, c: Any, meaning: Any = MEANINGS[name]) -> None:
            meaning(a, p, c)
            codes.append(a["q"][: int(p["rows"]) * int(p["stride"])].reshape(int(p["rows"]), -1).copy())

        monkeypatch.setitem(MEANINGS, name, watched)
    logits = np.asarray(model.logits(ids))
    assert len(codes) == 4 * model.config.n_layers
    return logits, codes


def shipped(make_folder: Callable[..., Path]) -> Path:
    return Path(str(files("bitnet_core") / "data" / "stories.gguf"))


def random_bitnet(make_folder: Callable[..., Path]) -> Path:
    return make_folder()


def random_llama(make_folder: Callable[..., Path]) -> Path:
    return make_folder(llama=True)


@pytest.mark.parametrize("source", [shipped, random_bitnet, random_llama])
def test_transformers_agrees(
    source: Any, make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(source(make_folder), device="numpy", kv_cache_type="f32") as ours:
        folder = tmp_path / "converted"
        convert(ours.source, folder, "safetensors", verify=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        for text in TEXTS:
            expected = ours.tokenizer.encode(text, add_bos=ours.tokenizer.add_bos, parse_special=True)
            assert list(tokenizer(text)["input_ids"]) == expected
        chat = tokenizer.apply_chat_template(TALK, add_generation_prompt=True, tokenize=False)
        assert chat == ours.chat_template.render(TALK)
        ids = (list(tokenizer(SELF_TEST_TEXT)["input_ids"]) * 4)[:80]
        logits, codes = our_logits_and_codes(ours, ids, monkeypatch)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def difference(take_ours: bool) -> tuple[npt.NDArray[np.float32], OurQuantizer]:
        quantizer = OurQuantizer(codes, take_ours)
        monkeypatch.setattr(bitnet, "ActQuant", quantizer)
        with torch.no_grad():
            found = theirs(torch.tensor([ids])).logits[0].numpy()
        assert quantizer.calls == len(LINEARS) * len(codes) // 4
        return np.abs(found - logits).max(axis=1), quantizer

    as_they_come, quantizer = difference(take_ours=False)
    first = min((token for _, token in quantizer.flips), default=len(ids))
    forced, quantizer = difference(take_ours=True)
    assert as_they_come[:first].max(initial=0) <= TOLERANCE
    assert quantizer.farthest <= BOUNDARY
    assert len(quantizer.flips) <= 1e-4 * sum(found.size for found in codes)
    assert forced.max() <= TOLERANCE
