"""Whether transformers loads what `bitnet convert --to safetensors` writes, and agrees with the source's logits.

    python benchmarks/convert_transformers.py [MODEL ...]

needs torch and transformers. Without arguments it takes the model that ships with bitnet-core. For each model it
converts to a folder in a temporary directory, loads it with AutoModelForCausalLM (float32) and AutoTokenizer, and
prints the largest difference of the logits over a text, and whether the ids agree.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from bitnet_core.api import load
from bitnet_core.formats.convert import convert
from bitnet_core.formats.self_test import SELF_TEST_TEXT
from transformers import AutoModelForCausalLM, AutoTokenizer

TALK = [{"role": "user", "content": "Hello there"}]


def check(path: str) -> bool:
    """Convert, load with both, compare; prints one line."""
    with load(path, device="numpy", kv_dtype="f32") as ours, tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "converted"
        convert(ours.source, folder, "safetensors", verify=True)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = ours.tokenizer.encode(SELF_TEST_TEXT, add_bos=ours.tokenizer.add_bos)
        theirs = tokenizer(SELF_TEST_TEXT)["input_ids"]
        chat = tokenizer.apply_chat_template(TALK, add_generation_prompt=True, tokenize=False)
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0].float().numpy()
        found = np.asarray(ours.logits(ids))
        per_token = np.abs(found - expected).max(axis=1)
        difference = float(per_token.max())
        good = difference <= 1e-4 and list(theirs) == ids and chat == ours.chat_template.render(TALK)
        print(
            f"{path}: {type(model).__name__}, {len(ids)} tokens, max difference of logits {difference:.2e}, "
            f"above 1e-4 at {int((per_token > 1e-4).sum())} tokens, first at {int((per_token > 1e-4).argmax())} "
            f"(logits up to {np.abs(expected).max():.1f}), ids {'equal' if list(theirs) == ids else 'DIFFER'}, "
            f"chat text {'equal' if chat == ours.chat_template.render(TALK) else 'DIFFERS'}"
        )
        return good


if __name__ == "__main__":
    models = sys.argv[1:] or [str(files("bitnet_core") / "data" / "stories.gguf")]
    results = [check(model) for model in models]
    sys.exit(0 if all(results) else 1)
