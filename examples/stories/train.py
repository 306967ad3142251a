"""Train the ternary model and its full-precision twin.

    python train.py --tokenizer build/tokenizer.json --out build --steps 7500

Both models are stepped side by side on the same stories. The ternary one is trained with quantisation-aware training
from the first step on. The learning rate has two phases: after a short warm-up it is constant with weight decay, and
from `--cooldown` of the steps on it falls to zero without weight decay. Matrices inside the blocks are stepped by Muon,
embedding and norms by AdamW. Meanwhile the other cores of the machine generate and tokenize the stories.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from documents import chunk, special_id
from model import Model, Shape
from muon import Muon
from tokenizer import BOS
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name everybody knows)

MATRIX_RATE, OTHER_RATE, DECAY = 0.02, 0.003, 0.1
WARM_UP = 50
CHUNK = 1000  # documents that one process packs into rows
AHEAD = 300  # chunks prepared ahead, so that the compilation costs no time
LOG_EVERY, SAVE_EVERY = 20, 500  # steps


def loss_of(model: Model, rows: Tensor, ternary: bool) -> Tensor:
    """Return the mean negative log-likelihood in nats of all tokens of rows [batch, width] but BOS, which begins a
    document."""
    with torch.autocast(rows.device.type, torch.bfloat16):
        logits = model(rows[:, :-1], ternary)
    return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), model.shape.bos)


@torch.compile(dynamic=False, disable=not torch.cuda.is_available())
def cross_entropy(logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
    return F.cross_entropy(logits.float(), targets, ignore_index=ignored)


class Run:
    """A model, its optimizers and the current step."""

    def __init__(self, steps: int, cooldown: float, ternary: bool, device: torch.device) -> None:
        torch.manual_seed(0)
        self.model = Model(Shape()).to(device)
        self.step, self.steps, self.cooldown = 0, steps, round(steps * cooldown)
        self.ternary = ternary
        if device.type == "cuda":
            for block in self.model.blocks:  # compiling one block for all is much faster than compiling a whole model
                block.compile(dynamic=False)
        matrices = [p for p in self.model.blocks.parameters() if p.ndim == 2]
        norms = [p for p in self.model.parameters() if p.ndim == 1]
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (
            Muon(matrices, lr=MATRIX_RATE, weight_decay=DECAY),
            torch.optim.AdamW(
                [self.model.embedding, *norms], lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True
            ),
        )
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["peak"] = group["lr"]

    def rate(self) -> float:
        """Return the learning rate of this step as a share of its peak."""
        if self.step < WARM_UP:
            return (self.step + 1) / WARM_UP
        return min(1.0, (self.steps - self.step) / (self.steps - self.cooldown))

    def train_step(self, rows: Tensor) -> Tensor:
        """Take one optimizer step; return the loss, still on the device."""
        loss = loss_of(self.model, rows, self.ternary)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * self.rate()
                if self.step >= self.cooldown:
                    group["weight_decay"] = 0.0
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return loss.detach()


def batches(tokenizer: Path, size: int, count: int) -> Iterator[Tensor]:
    """Yield `count` batches of rows [size, context + 1], always the same ones; other processes prepare them."""
    width = Shape().context + 1
    workers = max(1, (os.cpu_count() or 2) - 2)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=os.nice, initargs=(10,)) as pool:
        firsts = itertools.count(0, CHUNK)
        ahead = deque(pool.submit(chunk, tokenizer, next(firsts), CHUNK, width) for _ in range(AHEAD))
        rows = np.empty((0, width), np.uint16)
        for _ in range(count):
            while len(rows) < size:
                rows = np.concatenate((rows, ahead.popleft().result()))
                ahead.append(pool.submit(chunk, tokenizer, next(firsts), CHUNK, width))
            yield torch.from_numpy(rows[:size].astype(np.int64))
            rows = rows[size:]
        pool.shutdown(cancel_futures=True)


def save(model: Model, path: Path) -> None:
    """Write a checkpoint atomically."""
    partial = path.with_suffix(".partial")
    torch.save({"model": model.state_dict()}, partial)
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoints and logs")
    parser.add_argument("--steps", type=int, required=True, help="steps of each model")
    parser.add_argument("--cooldown", type=float, default=0.35, help="share of the steps before the rate falls")
    parser.add_argument("--batch", type=int, default=32, help="rows in a step")
    arguments = parser.parse_args()
    if special_id(Tokenizer.from_file(str(arguments.tokenizer)), BOS) != Shape().bos:
        raise SystemExit(f"{arguments.tokenizer} does not belong to this model: {BOS} is not token {Shape().bos}")
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    runs = {name: Run(arguments.steps, arguments.cooldown, name == "ternary", device) for name in ("ternary", "twin")}
    losses: dict[str, list[Tensor]] = {name: [] for name in runs}
    tokens, started = 0, time.monotonic()
    with (out / "loss.csv").open("w", newline="") as file:
        log = csv.writer(file)
        log.writerow(("step", "tokens", "seconds", *runs))
        for step, batch in enumerate(batches(arguments.tokenizer, arguments.batch, arguments.steps), 1):
            tokens += int((batch[:, 1:] != Shape().bos).sum())
            rows = (batch.pin_memory() if device.type == "cuda" else batch).to(device, non_blocking=True)
            for name, run in runs.items():
                losses[name].append(run.train_step(rows))
            if step % LOG_EVERY == 0 or step == arguments.steps:
                means = [round(torch.stack(losses[name]).mean().item(), 4) for name in runs]
                seconds = round(time.monotonic() - started, 1)
                log.writerow((step, tokens, seconds, *means))
                file.flush()
                print(f"step {step}: {tokens / 1e6:.1f} M tokens  {seconds} s  ternary, twin: {means}", flush=True)
                losses = {name: [] for name in runs}
            if step % SAVE_EVERY == 0 or step == arguments.steps:
                for name, run in runs.items():
                    save(run.model, out / f"{name}.pt")


if __name__ == "__main__":
    main()
