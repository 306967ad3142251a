"""Draws the loss curve from the training logs.

python curve.py --logs build --out ../../docs/stories-loss.png
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, required=True, help="folder of shared.csv, ternary.csv and twin.csv")
    parser.add_argument("--out", type=Path, required=True, help="the PNG file to write")
    arguments = parser.parse_args()
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    labels = {
        "shared": "full precision, shared",
        "twin": "twin: full precision",
        "ternary": "ternary weights, int8 activations",
    }
    for name, label in labels.items():
        with (arguments.logs / f"{name}.csv").open(newline="") as file:
            rows = [(int(step), float(loss)) for step, _, loss, _ in csv.reader(file)]
        axes.plot(*zip(*rows, strict=True), label=label, linewidth=1)
    axes.set(xlabel="step (32 stories each)", ylabel="training loss, nats per token", yscale="log")
    axes.set_yticks([0.4, 0.5, 0.6, 0.8, 1, 2, 4, 8], ["0.4", "0.5", "0.6", "0.8", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
