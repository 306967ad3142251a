#!/usr/bin/env bash
# For owners of an AMD GPU: runs the conformance kit, the shipped model and the benchmark, and names the file to send.
#   plugins/bitnet-rocm/benchmarks/owner.sh
# Needs ROCm (or the HIP SDK) and an interpreter (PYTHON, default python3) with bitnet-core[test] and bitnet-rocm.
set -uo pipefail
cd "$(dirname "$0")/../../.."
python=${PYTHON:-python3}
out=${OUT:-build/owner}
mkdir -p "$out"
bitnet() { "$python" -c 'from bitnet_core.cli.app import main; main()' "$@"; }
{
    bitnet devices -v
    bitnet doctor --device rocm:0
    "$python" -m pytest -q --tb=short -p no:cacheprovider --require-device --bitnet-report "$out/kit-rocm.json" \
        plugins/bitnet-rocm/tests/test_conformance.py
    bitnet run "Once upon a time" -n 64 --device rocm:0
    bitnet tune --synthetic 2b4t --seconds 120 --json > "$out/tune-rocm.json"
    for prompt in 128 512 2048; do
        bitnet bench --synthetic 2b4t --device rocm:0 -p "$prompt" -n 128 --repeat 5 --json
    done
    bitnet bench --synthetic 2b4t --device rocm:0 -p 128 -n 16 --profile "$out/profile.json" --force
} 2>&1 | tee "$out/report.txt"
echo "Please send $out/report.txt, $out/kit-rocm.json and $out/tune-rocm.json"
