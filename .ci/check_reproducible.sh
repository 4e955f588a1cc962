#!/usr/bin/env bash
# Whether the libraries in dist/*.whl are the bytes that other folders gave: check_reproducible.sh
# `make setup` has built this machine's in the clone, and the tests the other one; the wheels come from copies of the clone.
# So wheels have what was tested. A compiler cache may have spared compiling twice: `make reproduce-wheels`, of nights and
# releases, compiles everything once more.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

same() { # FILE ARCHITECTURE
    python3 -m zipfile --extract dist/lanewise-*_"$2".whl "$work/$2"
    if ! cmp "$1" "$work/$2/lanewise/native/liblanewise.so"; then
        echo "the library of the wheel for $2 depends on where it is built" >&2
        exit 1
    fi
    echo "the library for $2 is the same from two folders: $(sha256sum <"$1" | cut -c1-16)"
}

installed=$(.venv/bin/python -c 'from lanewise.native.library import library_path; print(library_path())')
same "$installed" x86_64
PYTHONPATH=tests/support .venv/bin/python -c 'import native_build; native_build.arm_program("lanewise")'
aarch64-linux-gnu-strip -o "$work/liblanewise.so" build/aarch64-tests/liblanewise.so
same "$work/liblanewise.so" aarch64
