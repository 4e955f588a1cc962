#!/usr/bin/env bash
# Lets the library of an aarch64 wheel run models under emulation: check_wheel_arm.sh WHEEL
# Programs are linked with it as Python would open it, one kind of CPU for each level. What the kernels compute there is
# tested before, with the same bytes (.ci/check_reproducible.sh): this is whether they can be loaded and found.
set -euo pipefail
wheel=$(realpath "${1:?usage: check_wheel_arm.sh WHEEL}")
cd "$(dirname "$0")/.."
qemu=$(python3 -c 'import sys; sys.path.insert(0, "tests/arm"); import levels; print(levels.emulator())')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m zipfile --extract "$wheel" "$work"
library=$work/lanewise/native/liblanewise.so
for program in test_cpu test_sessions; do
    aarch64-linux-gnu-gcc -O1 -o "$work/$program" -I native/include -I native/src -I native/bench \
        "tests/native/$program.c" "$library" -Wl,-rpath,"${library%/*}" -lm -pthread
done
for level in neon:cortex-a72 dotprod:neoverse-n1 i8mm:neoverse-v1,sve=off sve:neoverse-v1; do
    emulated=("$qemu" -L /usr/aarch64-linux-gnu -cpu "${level#*:}")
    "${emulated[@]}" "$work/test_cpu" | grep --line-regexp "best ${level%%:*}"
    "${emulated[@]}" "$work/test_sessions" | tail -n 1
done
