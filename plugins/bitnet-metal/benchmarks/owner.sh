#!/usr/bin/env bash
# For owners of a Mac with Apple silicon: runs the conformance kit, the shipped model and the benchmark, names what to send.
#   plugins/bitnet-metal/benchmarks/owner.sh
# Needs macOS 13 or later and an interpreter for arm64 (PYTHON, default python3) with bitnet-core[test] and bitnet-metal.
set -uo pipefail
cd "$(dirname "$0")/../../.."
python=${PYTHON:-python3}
out=${OUT:-build/owner}
mkdir -p "$out"
failed=0
bitnet() { "$python" -c 'from bitnet_core.cli.app import main; main()' "$@"; }
{
    bitnet devices -v || failed=1
    bitnet doctor --device metal:0 || failed=1
    "$python" -m pytest -q --tb=short -p no:cacheprovider --require-device --bitnet-report "$out/kit-metal.json" \
        plugins/bitnet-metal/tests/test_conformance.py || failed=1
    bitnet run "Once upon a time" -n 64 --device metal:0 || failed=1
    bitnet tune --synthetic 2b4t --seconds 120 --json > "$out/tune-metal.json" || failed=1
    for prompt in 128 512 2048; do
        bitnet bench --synthetic 2b4t --device metal:0 -p "$prompt" -n 128 --repeat 5 --json || failed=1
    done
    bitnet bench --synthetic 2b4t --device metal:0 -p 128 -n 16 --profile "$out/profile.json" --force || failed=1
    echo "failed: $failed"
} > >(tee "$out/report.txt") 2>&1
echo "Please send $out/report.txt, $out/kit-metal.json and $out/tune-metal.json"
exit "$failed"
