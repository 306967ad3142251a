#!/usr/bin/env bash
# bitnet-rocm's host path and portable kernels on an NVIDIA GPU, through hip_on_cuda.cpp: kit, shipped model, 2B-4T's shape.
# Figures are printed last. They are no figures of any AMD GPU.
#   plugins/bitnet-rocm/benchmarks/on_nvidia.sh
# Needs g++, the NVIDIA driver, and an interpreter (PYTHON, default python3) with bitnet-core[test], bitnet-rocm and
# nvidia-cuda-nvrtc.
set -uo pipefail
cd "$(dirname "$0")/../../.."
python=${PYTHON:-python3}
out=$(realpath -m "${OUT:-build}")
mkdir -p "$out/hip/lib"
g++ -std=c++17 -O1 -shared -fPIC -o "$out/hip/lib/libamdhip64.so" plugins/bitnet-rocm/benchmarks/hip_on_cuda.cpp -ldl || exit 1
ln -sf libamdhip64.so "$out/hip/lib/libhiprtc.so"
export ROCM_PATH=$out/hip XDG_CACHE_HOME=$out/hip/cache
HIP_ON_CUDA_NVRTC=$("$python" -c 'import glob, sysconfig
print(glob.glob(sysconfig.get_path("purelib") + "/nvidia/*/lib/libnvrtc.so.13")[0])') || exit 1
export HIP_ON_CUDA_NVRTC
bitnet() { "$python" -c 'from bitnet_core.cli.app import main; main()' "$@"; }

bitnet devices -v
timeout 240 "$python" -m pytest -q --tb=short -p no:cacheprovider --require-device --bitnet-report "$out/kit-rocm.json" \
    plugins/bitnet-rocm/tests/test_conformance.py -k "not ten_thousand" | tail -15
bitnet run "Once upon a time" -n 48 --device rocm:0
for prompt in 128 512 2048; do
    timeout 100 "$python" -c 'from bitnet_core.cli.app import main; main()' \
        bench --synthetic 2b4t --device rocm:0 -p "$prompt" -n 128 --repeat 3 --json
done
