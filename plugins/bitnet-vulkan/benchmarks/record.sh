#!/usr/bin/env bash
# Tests and measures the Vulkan backend on this machine's GPU in a few minutes: the kit, then 2B-4T and Bonsai-8B shapes
# (figures as JSON, one line per run), then the same by kernel, and with other tunings.
#   plugins/bitnet-vulkan/benchmarks/record.sh [kit] [2b4t] [bonsai] [profile] [variants]   (all of them without a name)
# PYTHON: an interpreter that has bitnet-core[test] and bitnet-vulkan. VK_DRIVER_FILES: the driver's icd json, if the
# loader does not find it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
mkdir -p "${OUT:-build}"
python=${PYTHON:-python3}
wanted=" ${*:-kit 2b4t bonsai profile variants} "
bitnet() { "$python" -c 'from bitnet_core.cli.app import main; main()' "$@"; }

bitnet devices
if [[ $wanted == *" kit "* ]]; then
    "$python" -m pytest -q -p no:cacheprovider plugins/bitnet-vulkan/tests/test_conformance.py --require-device \
        --bitnet-report "${OUT:-build}/conformance-vulkan.json" || echo "the kit found something"
fi
if [[ $wanted == *" 2b4t "* ]]; then
    for prompt in 128 512 2048; do
        bitnet bench --synthetic 2b4t --device vulkan -p $prompt -n 128 --repeat 5 --json
    done
fi
if [[ $wanted == *" bonsai "* ]]; then
    for prompt in 128 512 2048; do
        bitnet bench --synthetic bonsai-8b --device vulkan -p $prompt -n 64 --repeat 3 --json
    done
fi
if [[ $wanted == *" profile "* ]]; then
    for shape in 2b4t bonsai-8b; do
        for prompt in 512 2048; do
            bitnet bench --synthetic $shape --device vulkan -p $prompt -n 128 --repeat 3 \
                --profile "${OUT:-build}/vulkan-$shape-$prompt.json" --force
        done
    done
fi
if [[ $wanted == *" variants "* ]]; then
    "$python" plugins/bitnet-vulkan/benchmarks/gpu.py model brief
    "$python" plugins/bitnet-vulkan/benchmarks/gpu.py model brief bonsai-8b
    "$python" plugins/bitnet-vulkan/benchmarks/gpu.py prompts 2048
    "$python" plugins/bitnet-vulkan/benchmarks/gpu.py prompts 512
    "$python" plugins/bitnet-vulkan/benchmarks/gpu.py prompts 512 bonsai-8b
    "$python" plugins/bitnet-vulkan/benchmarks/gpu.py model 512 bonsai-8b
fi
