#!/usr/bin/env bash
# Tests and measures bitnet-cuda on this machine's GPU in less than eight minutes: the conformance kit without its slowest
# cases, the shipped model, then decode and prefill of the shapes 2B-4T and Bonsai 8B. Figures are printed last.
#   plugins/bitnet-cuda/benchmarks/on_device.sh
# Needs an interpreter (PYTHON, default python3) with bitnet-core[test] and bitnet-cuda.
set -uo pipefail
cd "$(dirname "$0")/../../.."
python=${PYTHON:-python3}
out=${OUT:-build}
mkdir -p "$out"
bitnet() { "$python" -c 'from bitnet_core.cli.app import main; main()' "$@"; }

bitnet devices -v
timeout 240 "$python" -m pytest -q --tb=short -p no:cacheprovider --require-device --bitnet-report "$out/kit-cuda.json" \
    plugins/bitnet-cuda/tests/test_conformance.py plugins/bitnet-cuda/tests/test_gpu.py \
    -k "not ten_thousand and not 70001" | tail -25
bitnet run "Once upon a time" -n 48 --device cuda:0
for shape in 2b4t bonsai-8b; do
    timeout 150 "$python" plugins/bitnet-cuda/benchmarks/throughput.py --shape "$shape" --json "$out/throughput-$shape.json"
done
timeout 100 "$python" plugins/bitnet-cuda/benchmarks/products.py --rows 512 > "$out/products.txt"
tail -60 "$out/products.txt"
for shape in 2b4t bonsai-8b; do
    "$python" -c 'import json, sys
for run in json.load(open(sys.argv[1]))["lines"]: print(sys.argv[2], run)' "$out/throughput-$shape.json" "$shape"
done
