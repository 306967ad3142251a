#!/usr/bin/env bash
# Tests bitnet-rocm's host code and portable kernels on an NVIDIA GPU, through hip_on_cuda.cpp: kit, shipped model, 2B-4T's
# shape. Figures are printed last. They say nothing about an AMD GPU.
#   plugins/bitnet-rocm/benchmarks/on_nvidia.sh
# Needs g++, the NVIDIA driver, NVRTC (of the package nvidia-cuda-nvrtc, or of a CUDA toolkit), and an interpreter (PYTHON,
# default python3) with bitnet-core[test] and bitnet-rocm.
set -uo pipefail
cd "$(dirname "$0")/../../.."
python=${PYTHON:-python3}
out=$(realpath -m "${OUT:-build}")
mkdir -p "$out/hip/lib"
g++ -std=c++17 -O1 -shared -fPIC -o "$out/hip/lib/libamdhip64.so" plugins/bitnet-rocm/benchmarks/hip_on_cuda.cpp -ldl || exit 1
ln -sf libamdhip64.so "$out/hip/lib/libhiprtc.so"
export ROCM_PATH=$out/hip XDG_CACHE_HOME=$out/hip/cache
# NVRTC: from HIP_ON_CUDA_NVRTC, else the interpreter's packages, CUDA_HOME, LD_LIBRARY_PATH, the system.
if [ -z "${HIP_ON_CUDA_NVRTC:-}" ]; then
    packages=$("$python" -c 'import sys; print(*(f"{path}/nvidia/*/lib" for path in sys.path if path), sep=":")')
    home=${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}
    IFS=: read -ra folders <<<"$packages:$home/lib64:$home/targets/*/lib:${LD_LIBRARY_PATH:-}:/usr/local/cuda*/lib64:/usr/lib/*"
    for folder in "${folders[@]}"; do
        # shellcheck disable=SC2231  # folders hold patterns
        for library in $folder/libnvrtc.so.1[2-9]; do
            [ -e "$library" ] && HIP_ON_CUDA_NVRTC=${HIP_ON_CUDA_NVRTC:-$library}
        done
    done
    [ -n "${HIP_ON_CUDA_NVRTC:-}" ] || { echo "no libnvrtc.so: pip install nvidia-cuda-nvrtc, or set CUDA_HOME" >&2; exit 1; }
    echo "NVRTC is $HIP_ON_CUDA_NVRTC"
fi
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
