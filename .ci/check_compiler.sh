#!/usr/bin/env bash
# Says what to install where there is no C compiler, or one without the C library's headers: check_compiler.sh
set -euo pipefail
how="Install both with:  sudo apt-get install gcc libc6-dev"

compiler=${CC:-}
for name in cc gcc clang; do
    [ -n "$compiler" ] || compiler=$(command -v "$name" || true)
done
if [ -z "$compiler" ]; then
    echo "Lanewise compiles its C library here, and there is no C compiler (cc, gcc or clang; none in CC). $how" >&2
    exit 1
fi

read -ra command <<<"$compiler" # CC may have options
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '#include <pthread.h>\n#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' >"$folder/try.c"
if ! said=$("${command[@]}" -o "$folder/try" "$folder/try.c" -pthread 2>&1); then
    printf '%s\n' "$said" >&2
    echo "Lanewise compiles its C library here, and $compiler cannot compile a program. $how" >&2
    exit 1
fi
