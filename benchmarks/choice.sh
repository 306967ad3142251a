#!/usr/bin/env bash
# Measures the data for the choice of devices, the default cache and docs/support.md on real hardware; prints JSON:
#   benchmarks/choice.sh cuda        (or vulkan, opencl, ...; PYTHON: an interpreter that has core, the plugins and pytest)
# 1. `bitnet tune` on the small model and on the shape of 2B-4T, every device, with the seconds that it took;
# 2. 64 texts of 256 tokens on that shape without an option for the cache; 3. a state saved there and loaded on the CPU;
# 4. the conformance kit's report, which `python docs/matrix.py "$OUT/kit.json"` adds to the support page.
set -euo pipefail
cd "$(dirname "$0")/.."
device=$1 python=${PYTHON:-python3} out=${OUT:-build}
mkdir -p "$out"
bitnet() { "$python" -c 'from bitnet_core.cli.app import main; main()' "$@"; }

time bitnet tune --json
time bitnet tune --synthetic 2b4t --json
bitnet devices -v
bitnet bench --synthetic 2b4t -d "$device" -s 64 -p 128 -n 128 --repeat 1 --json
"$python" - "$device" "$out/state" <<'PROGRAM'
import sys
import bitnet_core

prompt = "Once upon a time there was a fox who lived in a big forest. " * 6
with bitnet_core.load(None, sys.argv[1]) as here:
    text = here.generate(prompt, max_tokens=16)
    print("saved blocks:", here.save_state(sys.argv[2], force=True))
with bitnet_core.load(None, "cpu") as there:
    print("loaded blocks:", there.load_state(sys.argv[2]))
    again = there.generate(prompt, max_tokens=16)
    print("same text:", again.text == text.text, "reused tokens:", again.cached_tokens)
PROGRAM
"$python" -m pytest -q -p no:cacheprovider "plugins/bitnet-${device%%:*}/tests/test_conformance.py" --require-device \
    --bitnet-report "$out/kit.json"
