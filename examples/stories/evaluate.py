"""Measure the perplexity per token on held-out stories: the exported ternary model beside its full-precision twin.

    python evaluate.py --folder build/hf --twin build/twin.pt

Everything is computed in float32.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from documents import held_out
from model import Model, Shape
from shipped import load
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name everybody knows)


def padded(documents: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [documents, longest - 1]; padded targets are -1."""
    longest = max(map(len, documents)) - 1
    tokens = torch.zeros(len(documents), longest, dtype=torch.long)
    targets = torch.full((len(documents), longest), -1)
    for row, ids in enumerate(documents):
        tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        targets[row, : len(ids) - 1] = torch.tensor(ids[1:])
    return tokens, targets


@torch.inference_mode()
def perplexity(logits_of: Callable[[Tensor], Tensor], stories: list[list[int]], device: str) -> float:
    """Return exp of the mean negative log-likelihood of all tokens but BOS; EOS counts."""
    total, count = 0.0, 0
    for start in range(0, len(stories), 10):
        tokens, targets = (tensor.to(device) for tensor in padded(stories[start : start + 10]))
        losses = F.cross_entropy(logits_of(tokens).flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
        total += losses.item()
        count += int((targets >= 0).sum())
    return math.exp(total / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the exported Hugging Face folder")
    parser.add_argument("--twin", type=Path, required=True, help="checkpoint of the full-precision twin")
    parser.add_argument("--stories", type=int, default=500)
    arguments = parser.parse_args()
    stories = held_out(Tokenizer.from_file(str(arguments.folder / "tokenizer.json")), arguments.stories)
    shipped, _ = load(arguments.folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shipped.to(device)
    ternary = perplexity(lambda tokens: shipped(tokens).logits, stories, device)
    twin_model = Model(Shape())
    twin_model.load_state_dict(torch.load(arguments.twin, map_location="cpu", weights_only=True)["model"])
    twin_model.to(device)
    twin = perplexity(lambda tokens: twin_model(tokens, ternary=False), stories, device)
    print(f"{len(stories)} stories: ternary {ternary:.4f}, twin {twin:.4f}, ratio {ternary / twin:.4f}")


if __name__ == "__main__":
    main()
