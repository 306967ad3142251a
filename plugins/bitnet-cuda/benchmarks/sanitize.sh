#!/usr/bin/env bash
# Small models of both architectures under compute-sanitizer's memcheck and racecheck, with and without tensor cores:
# alone and in a batch, greedy and sampled, short and long prompts. Fails if either tool reports anything. Ends within 90 s:
# a tool that exceeds its half is stopped after its current model, and lists the kernels that it has checked.
#   plugins/bitnet-cuda/benchmarks/sanitize.sh
# Needs bitnet-core, bitnet-cuda and the CUDA toolkit's compute-sanitizer.
set -uo pipefail
cd "$(dirname "$0")/../../.."
program='
import sys, time
from collections import Counter
from importlib.resources import files
from pathlib import Path
import numpy as np
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.options import EngineOptions
from bitnet_core.engine.sampling.sampler import SamplingParams
from bitnet_core.formats.open import open_model
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_cuda.device import CudaDevice

end = time.monotonic() + 36
stories = files("bitnet_core") / "data" / "stories.gguf"
tiny = sorted(Path("core/tests/golden/qwen3").glob("*/*.gguf"))
runs = [(stories, True, "off"), (stories, True, "on"), *((path, True, "off") for path in tiny[1::2])]
runs += [(stories, False, "off"), (tiny[0], False, "off")]
seen, done = Counter(), 0
for path, tensor_cores, lm_head_int8 in runs:
    if time.monotonic() > end:
        break
    source = open_model(path)
    device = CudaDevice(0, tensor_cores=tensor_cores)
    engine = Engine(source, device, EngineOptions(max_sequences=8, lm_head_int8=lm_head_int8))
    room = engine.max_model_len - 8
    for batch, length, sampling in (
        (1, 150, SamplingParams()),  # attention over the positions is shared by two blocks
        (1, 5, SamplingParams(temperature=0.8, top_k=5, seed=1)),
        (8, 20, SamplingParams()),  # 160 rows: the kernels of prompts
    ):
        for text in range(batch):
            tokens = np.random.default_rng(text).integers(0, source.config.vocab, min(length, room))
            engine.add_request(tokens.tolist(), sampling, max_tokens=6)
        while engine.step():
            pass
    seen += engine.kernel_launches
    engine.close()
    done += 1
print(f"{done} of {len(runs)} runs, {sum(seen.values())} launches of {len(seen)} kernels: {sorted(seen)}")
print("not launched:", sorted(set(CATALOGUE) - set(seen)))
'
status=0
for tool in memcheck racecheck; do
    echo "compute-sanitizer --tool $tool"
    timeout 45 compute-sanitizer --tool "$tool" --error-exitcode 9 "${PYTHON:-python3}" -c "$program" || status=$?
done
exit "$status"
