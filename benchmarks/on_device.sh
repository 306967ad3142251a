#!/usr/bin/env bash
# Records a backend's results on this machine's hardware: the conformance kit, the stories model, and the 2B-4T shape.
#   benchmarks/on_device.sh vulkan        (or cuda, opencl, cpu; a device such as opencl:1 names one of several)
# Needs Python 3.11+, the driver, and the packages of core, the plugin and pytest (installed into build/on-device, or
# already there: set PYTHON to use an interpreter that has them). Figures are printed last, as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."
device=$1
backend=${device%%:*}
python=${PYTHON:-}
if [ -z "$python" ]; then
    python3 -m venv build/on-device
    python=build/on-device/bin/python
    "$python" -m pip install --quiet "./hal[test]" "./core[test]" "./plugins/bitnet-$backend"
fi
bitnet() { "$python" -c 'from bitnet_core.cli.app import main; main()' "$@"; }

bitnet devices
"$python" -m pytest -q -p no:cacheprovider "plugins/bitnet-$backend/tests/test_conformance.py" --require-device \
    --bitnet-report "${OUT:-build}/conformance-$backend.json" --bitnet-perf "${OUT:-build}/kernels-$backend.json"
bitnet run "Once upon a time" -n 64 --device "$device"
for prompt in 512 2048; do
    bitnet bench --synthetic 2b4t --device "$device" -p "$prompt" -n 128 --repeat 5 --json
done
