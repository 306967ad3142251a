#!/usr/bin/env bash
# Runs the native kernels and the thread pool of bitnet-cpu under ASan, UBSan and TSan. Needs g++ and cmake.
#
#     benchmarks/reliability/sanitizers.sh
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
check() { # name, flags, programs
    local build="$root/build/sanitizers/$1"
    cmake -S "$root/plugins/bitnet-cpu" -B "$build" -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_CXX_FLAGS="-O1 $2 -fno-omit-frame-pointer" >/dev/null
    cmake --build "$build" --parallel 1 --target $3 >/dev/null
    for program in $3; do
        echo "$1: $program"
        "$build/$program"
    done
}
check thread "-fsanitize=thread" "pooltest"
check address-undefined "-fsanitize=address,undefined -fno-sanitize-recover=all" "selftest pooltest"
