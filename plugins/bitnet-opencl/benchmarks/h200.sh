#!/usr/bin/env bash
# The kit and the figures of docs/benchmarks.md on a GPU: pip install "./hal[test]" "./core[test]" ./plugins/bitnet-opencl, then
#   benchmarks/h200.sh [FOLDER for the JSON files]
# Under 6 minutes on an H200; every step goes on where the one before failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-.}
mkdir -p "$out"
python -m pytest -q -p no:cacheprovider --require-device "$here/../tests/test_conformance.py" "$here/../tests/test_plugin.py" |
    tail -n 30 | tee "$out/kit.txt"
for shape in 2b4t bonsai-8b; do
    for prompt in 128 512 2048; do
        bitnet bench --synthetic "$shape" --device opencl -p "$prompt" -n 128 --repeat 3 --json |
            tee "$out/$shape-$prompt.json"
    done
done
python "$here/gpu.py" --device opencl --json "$out/gpu.json"
