"""Prints unedited samples of the exported model, as Markdown.

python sample.py --folder build/hf --count 20 --temperature 0.8 --seed 1
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from shipped import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the exported Hugging Face folder")
    parser.add_argument("--prompt", default="", help="text that every sample begins with")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.folder)
    torch.manual_seed(arguments.seed)
    ids = torch.tensor([tokenizer.encode(arguments.prompt)] * arguments.count)
    samples = model.generate(ids, do_sample=True, temperature=arguments.temperature, top_k=0, max_new_tokens=400)
    for number, sample in enumerate(samples, 1):
        text = tokenizer.decode(sample, skip_special_tokens=True)
        print(f"### {number}\n\n{text}\n")


if __name__ == "__main__":
    main()
