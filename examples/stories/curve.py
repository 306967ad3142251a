"""Draw the loss curve from the training log.

python curve.py --log build/loss.csv --out ../../docs/stories-loss.png
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True, help="the loss.csv of train.py")
    parser.add_argument("--out", type=Path, required=True, help="the PNG file to write")
    arguments = parser.parse_args()
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    labels = {"twin": "twin: full precision", "ternary": "ternary weights, int8 activations"}
    with arguments.log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name, label in labels.items():
        tokens = [int(row["tokens"]) / 1e6 for row in rows]
        axes.plot(tokens, [float(row[name]) for row in rows], label=label, linewidth=1)
    axes.set(xlabel="million tokens", ylabel="training loss, nats per token", yscale="log")
    axes.set_yticks([0.4, 0.5, 0.6, 0.8, 1, 2, 4, 8], ["0.4", "0.5", "0.6", "0.8", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
