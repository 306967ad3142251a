#!/usr/bin/env bash
# Tests and measures Bonsai 2 27B on this machine's GPU in less than nine minutes: the kit's cases of delta nets and rotated
# weights, the delta rule's error against float64, the golden model's text compared with numpy's, then the shape of Bonsai 2
# 27B with activation scales of 128 and of 32 columns, the shape of Bonsai 27B (not rotated), and the time of each kernel of
# a step. Figures are printed last.
#   plugins/bitnet-cuda/benchmarks/bonsai2.sh
# Needs an interpreter (PYTHON, default python3) with bitnet-core[test] and bitnet-cuda.
set -uo pipefail
cd "$(dirname "$0")/../../.."
python=${PYTHON:-python3}
out=${OUT:-build}
mkdir -p "$out"
bitnet() { "$python" -c 'from bitnet_core.cli.app import main; main()' "$@"; }
kernels="hadamard or glu- or conv1d or delta or gated or rotate_quantize or offered"

timeout 120 "$python" -m pytest -q --tb=short -p no:cacheprovider --require-device \
    plugins/bitnet-cuda/tests/test_conformance.py -k "($kernels) and not matmul" 2>&1 | tail -12
timeout 60 "$python" - <<'CODE'
import bitnet_core
file = "core/tests/golden/bonsai2/rotated-PTQ1_0.gguf"
prompts = [[38 * n % 300 for n in range(1, 9)], [38 * n % 300 for n in range(1, 80)]]
texts = []
for device in ("numpy", "cuda:0"):
    with bitnet_core.load(file, device) as model:
        texts.append([one.tokens for one in model.generate(prompts, max_tokens=12, temperature=0)])
print("golden text as numpy's:", texts[0] == texts[1])
CODE
timeout 90 "$python" benchmarks/delta_error.py --device cuda:0 > "$out/delta-error.txt"
for run in "bonsai2-27b 128" "bonsai2-27b 32" "bonsai-27b 32"; do
    set -- $run
    timeout 110 "$python" plugins/bitnet-cuda/benchmarks/throughput.py --shape "$1" --activation-group-size "$2" --runs long \
        --json "$out/throughput-$1-a$2.json"
done
timeout 80 "$python" -c 'from bitnet_core.cli.app import main; main()' bench --synthetic bonsai2-27b --device cuda:0 \
    --activation-group-size 128 -p 512 -n 16 --repeat 1 --profile "$out/bonsai2-trace.json" --force > "$out/profile.txt" 2>&1
cat "$out/profile.txt" "$out/delta-error.txt"
bitnet devices -v | head -12
for run in "bonsai2-27b-a128" "bonsai2-27b-a32" "bonsai-27b-a32"; do
    "$python" -c 'import json, sys
for line in json.load(open(sys.argv[1]))["lines"]: print(sys.argv[2], line)' "$out/throughput-$run.json" "$run"
done
