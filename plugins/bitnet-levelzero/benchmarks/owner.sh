#!/usr/bin/env bash
# The tests that docs/intel-gpus.md asks of the owner of an Intel GPU: the kit, a text, and speeds. Results are in owner-report/.
set -u
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p owner-report
export BITNET_LEVELZERO_DEVICE=1
{
    bitnet devices -v
    python -m pytest -q --require-device --bitnet-report owner-report/kit.json "$here/../tests/test_conformance.py"
    bitnet run --device level-zero -n 40 "Once upon a time"
    bitnet tune --synthetic 2b4t --seconds 120 --json > owner-report/tune.json
    bitnet bench --synthetic 2b4t --device level-zero -p 128 -n 64 --repeat 3
    bitnet bench --synthetic 2b4t --device level-zero -p 128 -n 64 --repeat 3 --profile owner-report/profile.json --force
} 2>&1 | tee owner-report/output.txt
