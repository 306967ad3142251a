"""Measure a model on a device of which it may take only some memory: the CPU computes the layers that do not fit.

    python benchmarks/offload.py -d cuda --synthetic bonsai2-27b --memory 4G 6G 8G
    python benchmarks/offload.py -d cuda -m MODEL.gguf --memory 4G          # beside llama-bench -ngl LAYERS on the file

Prints first the bandwidths of the device's memory, of the host's, and of the link between them; then a row for each
--memory (the option device_memory): the layers of each device, the memory taken, the medians of --repeat runs of a
prompt of -p tokens and a decode of -n tokens in tokens per second, and two limits of decoding: if each device reads
its layers at the bandwidth of its memory, and if the CPU's layers passed over the link in each step instead.
"""

from __future__ import annotations

import argparse
import statistics
import time

import bitnet_core
import numpy as np
from bitnet_core.api.loading import open_source
from bitnet_core.engine.memory_limit import account_of
from bitnet_core.engine.part import Part
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.measure.bandwidth import read_bandwidth
from bitnet_core.measure.benchmark import measured_runs, without_speculation
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import nbytes
from bitnet_core.plan.weight_sizes import layer_bytes
from bitnet_core.units import size
from bitnet_hal.device import whole
from bitnet_hal.discovery.selection import open_device
from bitnet_hal.errors import OutOfMemoryError

CONTEXT = 4096
_UPLOAD_BYTES = 256 << 20
_UPLOADS = 5
"""Uploads, of which the fastest counts."""

_ROW = "{:>9} {:>9} {:<28} {:>11} {:>10} {:>10} {:>12} {:>12}"
_HEAD = ("memory", "taken", "layers", "CPU reads", "prompt", "decode", "both memories", "over link")


def bandwidths(name: str) -> dict[str, float]:
    """Return the bandwidths of a device's memory, of the host's, and of uploads, in bytes per second."""
    found = {}
    for key, request in (("device", name), ("host", "cpu")):
        device, _ = open_device(request, fallback=False)
        found[key] = read_bandwidth(device)
        if key == "device":
            buffer = device.alloc(_UPLOAD_BYTES)
            data = np.ones(_UPLOAD_BYTES, np.uint8).data
            times = []
            for _ in range(_UPLOADS):
                began = time.perf_counter()
                device.upload(whole(buffer), data)
                device.synchronize()
                times.append(time.perf_counter() - began)
            found["link"] = _UPLOAD_BYTES / min(times)
        device.close()
    return found


def step_bytes(part: Part, head_bytes: int) -> int:
    """Return the bytes of weights that a decode step reads of the layers of a part."""
    experts = part.config.experts
    share = experts.used / experts.count if experts else 1.0
    return layer_bytes(part.config, share) + (0 if part.config.layers_after else head_bytes)


def row(asked: argparse.Namespace, source: ModelSource, limit: int | None, speeds: dict[str, float]) -> str:
    """Load and measure the model within a limit; return the row of the table."""
    context = min(CONTEXT, source.config.context)
    with bitnet_core.load(source, asked.device, context=context, device_memory=limit, offload=asked.offload) as model:
        engine = model.engine
        with without_speculation(engine):
            runs = measured_runs(engine, asked.texts, asked.prompt, asked.tokens, asked.repeat)
        parts = engine.worker.parts
        account = account_of(model.device)
        taken = "" if account is None else size(account.used)
        layers = ", ".join(f"{part.device.info.request} {part.config.n_layers}" for part in parts)
        *before, last = [step_bytes(part, engine.weights.head_bytes) for part in parts]
        own = last / speeds["device"]
        both = asked.texts / (own + sum(before) / speeds["host"])
        link = asked.texts / (own + sum(before) / speeds["link"])
    prompt = statistics.median(asked.texts * asked.prompt / run.prefill_seconds for run in runs)
    decode = statistics.median(run.decoded / run.decode_seconds for run in runs)
    figures = (f"{figure:.1f}" for figure in (prompt, decode, both, link))
    return _ROW.format("all" if limit is None else size(limit), taken, layers, size(sum(before)), *figures)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--device", required=True)
    parser.add_argument("-m", "--model", help="model file; default: the shape of --synthetic")
    parser.add_argument("--synthetic", choices=sorted(SHAPES), default="bonsai2-27b", help="shape of random weights")
    parser.add_argument("--memory", type=nbytes, nargs="+", required=True, metavar="SIZE", help="as 4G")
    parser.add_argument("--offload", type=int, metavar="N", help="layers on the CPU; default: as memory requires")
    parser.add_argument("--texts", type=int, default=1, help="concurrent requests")
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    asked.offload = "auto" if asked.offload is None else asked.offload
    speeds = bandwidths(asked.device)
    print(", ".join(f"{name} {speed / 1e9:.1f} GB/s" for name, speed in speeds.items()), flush=True)
    print(_ROW.format(*_HEAD))
    for limit in (None, *asked.memory):
        source = (
            SyntheticSource(asked.synthetic) if asked.model is None else open_source(asked.model, None, False, True)
        )
        try:
            print(row(asked, source, limit, speeds), flush=True)
        except OutOfMemoryError as error:
            print(f"{size(limit or 0):>9} out of memory: {error}", flush=True)


if __name__ == "__main__":
    main()
