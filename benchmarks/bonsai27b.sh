#!/usr/bin/env bash
# Bonsai 2 27B on the devices of this machine: the kit's cases of its kernels, the golden model's text beside numpy's, then the
# shape of Bonsai 2 27B with random weights, and the time of each kernel of its steps.
#   benchmarks/bonsai27b.sh vulkan opencl webgpu          (or cuda, rocm, ...; opencl:1 names one of several)
# Needs an interpreter (PYTHON, default python3) with bitnet-core[test] and the plugins, and 8 GB of memory.
# RUNS: prompt lengths with activation blocks, SHAPE: another shape. Files go to OUT (build); figures are printed last.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} out=${OUT:-build} shape=${SHAPE:-bonsai2-27b} runs=${RUNS:-"512:128 512:32 2048:128"}
mkdir -p "$out"
bitnet() { timeout "$1" "$python" -c 'from bitnet_core.cli.app import main; main()' "${@:2}"; }
kernels="hadamard or glu- or conv1d or delta or gated or rotate_quantize"

for device in "$@"; do
    backend=${device%%:*} name=${device//:/-}
    folder=plugins/bitnet-${backend//-/}
    timeout 150 "$python" -m pytest -q --tb=short -p no:cacheprovider --require-device "$folder/tests/test_conformance.py" \
        -k "($kernels) and not matmul" 2>&1 | tail -n 8 | tee "$out/bonsai27b-$name-kit.txt"
    timeout 60 "$python" - "$device" <<'CODE' | tee "$out/bonsai27b-$name-golden.txt"
import sys
import bitnet_core
prompts = [[38 * n % 300 for n in range(1, 9)], [38 * n % 300 for n in range(1, 80)]]
texts = []
for device in ("numpy", sys.argv[1]):
    with bitnet_core.load("core/tests/golden/bonsai2/rotated-PTQ1_0.gguf", device) as model:
        texts.append([one.tokens for one in model.generate(prompts, max_tokens=12, temperature=0)])
print("golden text as numpy's:", texts[0] == texts[1])
CODE
    for run in $runs; do
        bitnet 120 bench --synthetic "$shape" --device "$device" --activation-group-size "${run#*:}" -p "${run%:*}" -n 64 --repeat 3 --json \
            > "$out/bonsai27b-$name-${run/:/-}.json" || echo "$device: no figures of $run"
    done
    bitnet 120 bench --synthetic "$shape" --device "$device" --activation-group-size 128 -p 512 -n 8 --repeat 1 --force \
        --profile "$out/bonsai27b-$name-trace.json" > "$out/bonsai27b-$name-profile.txt" 2>&1
    cat "$out/bonsai27b-$name-profile.txt"
done

for device in "$@"; do
    name=${device//:/-}
    tail -n 1 "$out/bonsai27b-$name-kit.txt" "$out/bonsai27b-$name-golden.txt" | grep -v -e '^$' -e '==>'
    for run in $runs; do
        "$python" - "$out/bonsai27b-$name-${run/:/-}.json" "$device, prompt:block $run:" <<'CODE'
import json, sys
try:
    found = json.load(open(sys.argv[1]))
    print(sys.argv[2], *(f"{key.split('_')[0]} {found[key]:.1f} tokens/s" for key in ("prefill_speed", "decode_speed")), found["device_name"])
except (OSError, ValueError, KeyError):
    print(sys.argv[2], "nothing")
CODE
    done
done
