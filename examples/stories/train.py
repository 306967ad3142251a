"""Trains the ternary model and its full-precision twin.

    python train.py --tokenizer build/tokenizer.json --out build --steps 1000 --shared 400

Both models see the same stories in the same order for the same number of steps. The first `--shared` steps are taken
once, in full precision, because they would be the same for both; then the run branches: `twin` goes on in full
precision, `ternary` goes on with quantisation-aware training. The learning rate has two phases: after a short warm-up
it is constant with weight decay, and from `--cooldown` of the steps on it falls to zero without weight decay.
Matrices inside the blocks are stepped by Muon, embedding and norms by AdamW. A run that was stopped goes on from its
last checkpoint.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import torch
from documents import document, padded
from model import Model, Shape
from muon import Muon
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name everybody knows)

MATRIX_RATE, OTHER_RATE, DECAY = 0.02, 0.003, 0.1
WARM_UP = 20
MICRO_BATCH = 8  # documents of similar length that go through the model together


class Run:
    """A model, its optimizers and the step it has reached."""

    def __init__(self, steps: int, cooldown: int) -> None:
        torch.manual_seed(0)
        self.model = Model(Shape())
        self.step, self.steps, self.cooldown = 0, steps, cooldown
        matrices = [p for p in self.model.blocks.parameters() if p.ndim == 2]
        norms = [p for p in self.model.parameters() if p.ndim == 1]
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (
            Muon(matrices, lr=MATRIX_RATE, weight_decay=DECAY),
            torch.optim.AdamW(
                [{"params": [self.model.embedding]}, {"params": norms}],
                lr=OTHER_RATE,
                betas=(0.9, 0.95),
                weight_decay=0.0,
            ),
        )
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["peak"] = group["lr"]

    def rate(self) -> float:
        """Learning rate of this step as a share of its peak."""
        if self.step < WARM_UP:
            return (self.step + 1) / WARM_UP
        return min(1.0, (self.steps - self.step) / (self.steps - self.cooldown))

    def train_step(self, documents: list[list[int]], ternary: bool) -> float:
        """One optimizer step over the documents; returns the mean loss per token in nats."""
        documents = sorted(documents, key=len)
        count, total = sum(len(tokens) - 1 for tokens in documents), 0.0
        for start in range(0, len(documents), MICRO_BATCH):
            loss = token_losses(self.model, documents[start : start + MICRO_BATCH], ternary).sum() / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * self.rate()
                if self.step >= self.cooldown:
                    group["weight_decay"] = 0.0
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return total

    def save(self, path: Path) -> None:
        """Writes everything that is needed to go on; never leaves half a file."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def token_losses(model: Model, documents: list[list[int]], ternary: bool) -> Tensor:
    """Negative log-likelihood in nats of every token after the first of each document; padding gives 0."""
    tokens, targets = padded(documents)
    logits = model(tokens, ternary)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none")


def train(run: Run, tokenizer: Tokenizer, until: int, batch: int, ternary: bool, out: Path, name: str) -> None:
    """Takes steps up to `until`, saving to NAME.pt; NAME.csv gets step, tokens, loss and seconds of each."""
    with (out / f"{name}.csv").open("a", newline="") as file:
        log = csv.writer(file)
        started = time.monotonic()
        while run.step < until:
            first = run.step * batch
            documents = [document(tokenizer, index) for index in range(first, first + batch)]
            loss = run.train_step(documents, ternary)
            seconds = round(time.monotonic() - started, 1)
            log.writerow((run.step, sum(map(len, documents)), round(loss, 4), seconds))
            file.flush()
            if run.step % 50 == 0 or run.step == until:
                run.save(out / f"{name}.pt")
            if run.step % 10 == 0:
                print(f"{name} step {run.step}/{until}  loss {loss:.3f}  {seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoints and logs")
    parser.add_argument("--steps", type=int, required=True, help="steps of each model, the shared ones included")
    parser.add_argument("--shared", type=int, required=True, help="full-precision steps before the branch")
    parser.add_argument("--cooldown", type=float, default=0.6, help="share of the steps before the rate falls")
    parser.add_argument("--batch", type=int, default=32, help="documents in a step")
    parser.add_argument("--branch", choices=("shared", "ternary", "twin"), help="train this part alone")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    for branch in [arguments.branch] if arguments.branch else ["shared", "ternary", "twin"]:
        run = Run(arguments.steps, round(arguments.steps * arguments.cooldown))
        checkpoints = [path for name in (branch, "shared") if (path := out / f"{name}.pt").exists()]
        if checkpoints:
            run.load(checkpoints[0])
        until = arguments.shared if branch == "shared" else arguments.steps
        train(run, tokenizer, until, arguments.batch, branch == "ternary", out, branch)


if __name__ == "__main__":
    main()
