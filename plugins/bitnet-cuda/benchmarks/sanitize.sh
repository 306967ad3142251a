#!/usr/bin/env bash
# Runs the shipped model, decoding alone and in a batch, under compute-sanitizer's memcheck and racecheck; fails if either
# reports anything. Needs bitnet-core, bitnet-cuda and the CUDA toolkit's compute-sanitizer.
set -euo pipefail
program='
import numpy as np
from importlib.resources import files
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.options import EngineOptions
from bitnet_core.formats.open import open_model
from bitnet_cuda.device import CudaDevice

source = open_model(files("bitnet_core") / "data" / "stories.gguf")
engine = Engine(source, CudaDevice(0), EngineOptions(max_sequences=8))
for batch, length in ((1, 150), (8, 20)):  # 150 positions: attention is shared by two blocks; 160 rows: prompt kernels
    for text in range(batch):
        tokens = np.random.default_rng(text).integers(0, source.config.vocab, length)
        engine.add(tokens.tolist(), max_tokens=6)
    while engine.step():
        pass
engine.close()
print("done")
'
for tool in memcheck racecheck; do
    echo "compute-sanitizer --tool $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 "${PYTHON:-python3}" -c "$program"
done
