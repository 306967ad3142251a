"""Measure the processor time that `bitnet serve` takes for a token in the server's own process, without a GPU.

    python benchmarks/server_time.py --devices 2 --clients 32 --step-ms 4
    python benchmarks/server_time.py --without-http    # the queue and detokenizing alone, greedy and sampled

Its devices sleep instead of computing, so that what is left is the host's work: scheduling, sampling, detokenizing,
HTTP. With several devices each has a process, whose time is printed beside. The clients run in a process of their own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil
from bitnet_core.api import Model
from bitnet_core.api.replicas import ReplicaOpener, SeveralDevices, load_replicas
from bitnet_core.engine.output import OutputProcessor, StopFilter
from bitnet_core.engine.replicas.replica_set import ReplicaSet
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.schedule.results import RequestOutput
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.loading import LoadOptions
from bitnet_core.tokenizer import StreamDecoder
from bitnet_hal.discovery.request import parse_requests
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
    """Let this program and those that it starts find the plugin."""
    (folder / "bitnet_simulated.py").write_text(PLUGIN)
    entry = folder / "bitnet_simulated-1.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: bitnet-simulated\nVersion: 1\n")
    (entry / "entry_points.txt").write_text("[bitnet.backends]\nsimulated = bitnet_simulated\n")
    paths = [os.environ.get("PYTHONPATH", ""), str(folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    sys.path.append(str(folder))
    os.environ["SIMULATED_STEP"] = str(step_ms / 1e3)


def without_http(args: argparse.Namespace, devices: list[str]) -> None:
    """Queue requests in this process, and make text of their tokens."""
    opener = ReplicaOpener(None, LoadOptions(), EngineOptions(stream_interval=0.02))
    outputs: dict[Request, OutputProcessor] = {}

    def deliver(engine: object, steps: list[RequestOutput]) -> None:
        for step in steps:
            outputs[step.request].advance_all()

    several = SeveralDevices(parse_requests(",".join(devices)))
    made: ReplicaSet[Model] = ReplicaSet(lambda: load_replicas(opener, several), deliver)
    made.start()
    while not all(one.state == "ready" for one in made.devices()):
        time.sleep(0.01)
    model = made.model
    assert model is not None
    for name, sampling in (("greedy", {"temperature": 0}), ("sampled, top_k 40", {"temperature": 0.8, "top_k": 40})):
        params = model.defaults.params(**sampling)
        for run in range(args.repeat + 1):
            for at in range(sum(args.clients) * args.devices):
                request = model.engine.new_request([at + 1, 2, 3, run], params, max_tokens=args.tokens)
                outputs[request] = OutputProcessor(request, StreamDecoder(model.tokenizer), StopFilter([]))
            began = time.process_time()
            made.submit(outputs)
            while not all(request.finish_reason for request in outputs):
                time.sleep(0.005)
            tokens = sum(request.generated_tokens for request in outputs)
            if run:
                print(f"{name}: {(time.process_time() - began) / tokens * 1e6:.1f} us a token", flush=True)
            outputs.clear()
    made.close()


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
    parser.add_argument("--without-http", action="store_true", help="no server and no clients")
    args = parser.parse_args()
    args.model = None
    devices = [f"simulated:{index}" for index in range(args.devices)]
    groups = [args.clients] * args.devices
    args.clients = [args.clients]
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), args.step_ms)
        if args.without_http:
            without_http(args, devices)
            return
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
