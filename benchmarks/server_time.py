"""Measure the processor time that `bitnet serve` takes for a token in the server's own process, without a GPU.

    python benchmarks/server_time.py --devices 2 --clients 32 --step-ms 4

Its devices sleep instead of computing, so that what is left is the host's work: scheduling, sampling, detokenizing,
HTTP. With several devices each has a process, whose time is printed beside. The clients run in a process of their own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil
from replicas import measure, props, wait_for_devices
from server import served, words_for

PLUGIN = '''
import os
import time
from dataclasses import replace

import numpy as np
import pluggy
from bitnet_hal.device import DeviceType
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice

SECONDS = float(os.environ["SIMULATED_STEP"])


class Simulated(NumpyDevice):
    """A device whose steps last, and compute nothing: every token is number 0."""

    def _alloc(self, nbytes, kind):
        buffer = super()._alloc(nbytes, kind)
        buffer.data[:] = 0
        return buffer

    def _run(self, launch):
        spec = launch.kernel.spec
        if spec.name == "argmax_advance":  # count a token, whose number is 0
            names = [binding.name for binding in spec.bindings]
            buffer, offset, nbytes = launch.bound[names.index("history")]
            ring = spec.unpack(launch.params)["ring"]
            buffer.data[offset : offset + nbytes].view(np.int32).reshape(-1, ring + 1)[:, 0] += 1

    def _replay(self, recording):
        super()._replay(recording)
        time.sleep(SECONDS)


class Backend:
    name = "simulated"
    api = (2, 0)

    def devices(self):
        info = replace(numpy_info(), backend=self.name, name="simulated device", type=DeviceType.GPU)
        return [replace(info, index=index) for index in range(8)]

    def open(self, index):
        return Simulated(self.devices()[index])


@pluggy.HookimplMarker("bitnet")
def bitnet_backend():
    return Backend()
'''


def install(folder: Path, step_ms: float) -> None:
    """Let the programs that this one starts find the plugin."""
    (folder / "bitnet_simulated.py").write_text(PLUGIN)
    entry = folder / "bitnet_simulated-1.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: bitnet-simulated\nVersion: 1\n")
    (entry / "entry_points.txt").write_text("[bitnet.backends]\nsimulated = bitnet_simulated\n")
    paths = [os.environ.get("PYTHONPATH", ""), str(folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["SIMULATED_STEP"] = str(step_ms / 1e3)


def seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2, help="1 to 8")
    parser.add_argument("--clients", type=int, default=32, help="of each device")
    parser.add_argument("--step-ms", type=float, default=4, help="duration of a step")
    parser.add_argument("-n", "--tokens", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    args.model = None
    devices = [f"simulated:{index}" for index in range(args.devices)]
    groups = [args.clients] * args.devices
    args.clients = [args.clients]
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), args.step_ms)
        with served(args, [",".join(devices)]) as ((url,), (pid,)), ProcessPoolExecutor(len(groups), context) as pool:
            wait_for_devices(url)
            server = psutil.Process(pid)
            words = words_for(url, 16)
            for run in range(args.repeat + 1):
                children = server.children()
                before = seconds(server), [seconds(child) for child in children]
                made = sum(one["generated_tokens"] for one in props(url)["devices"])
                firsts = [100_000 * run + 10_000 * at for at in range(len(groups))]
                calls = [
                    pool.submit(measure, url, n, words, args.tokens, first)
                    for n, first in zip(groups, firsts, strict=True)
                ]
                rate = sum(call.result()["tokens_per_second"] for call in calls)
                tokens = sum(one["generated_tokens"] for one in props(url)["devices"]) - made
                own = (seconds(server) - before[0]) / tokens * 1e6
                theirs = sum(map(seconds, children)) - sum(before[1])
                if run:  # the first is a warm-up
                    print(
                        f"{tokens} tokens, {rate:.0f} a second: {own:.1f} us a token in the server's process, "
                        f"{theirs / tokens * 1e6:.1f} us in the others",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
