#!/usr/bin/env bash
# Installs what the complete test run needs beyond a C compiler and python3 (Debian 12; root or sudo):
# a compiler cache, the aarch64 cross compiler, two emulators, LLVM's pipeline model, Clang with libFuzzer, Prometheus,
# HAProxy, systemd's checks of units, and a browser with a font.
#   qemu-aarch64             the distribution's: takes plugins, which count instructions
#   $tools/qemu10/...        from backports: knows Neoverse V1 and N2. Unpacked, not installed, so both exist side by side.
#   $tools/debian-arm64/...  the packages of the arm64 image, unpacked, for tests to run under these
set -euo pipefail
cd "$(dirname "$0")/.."
tools=${LANEWISE_ARM_TOOLS:-/opt/lanewise-arm}
export DEBIAN_FRONTEND=noninteractive
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo --preserve-env=DEBIAN_FRONTEND)

"${as_root[@]}" apt-get -qq update
"${as_root[@]}" apt-get -qq install -y --no-install-recommends \
    gcc libc6-dev make git curl python3 python3-venv ca-certificates xz-utils \
    ccache gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user llvm-19 clang-19 libclang-rt-19-dev prometheus haproxy chromium fonts-dejavu-core systemd >/dev/null
# The package starts a server of its own where there is an init system; the tests start theirs.
"${as_root[@]}" systemctl disable --now prometheus prometheus-node-exporter >/dev/null 2>&1 || true

# shellcheck disable=SC2016 # $(SITE) is a placeholder of apt-get, not a command
mirror=$(apt-get indextargets --format '$(SITE)' 'Codename: bookworm' | head -n 1)
[ -n "$mirror" ] || { echo "no apt source for Debian bookworm: cannot fetch what Arm tests need" >&2; exit 1; }
work=$(mktemp -d)
trap '"${as_root[@]}" rm -rf "$work"' EXIT

# apt-get with one suite, for one architecture, that knows of nothing installed: fetch SUITE ARCHITECTURE PACKAGES...; writes into $work.
fetch() {
    local suite=$1 arch=$2
    shift 2
    mkdir -p "$work"/{lists/partial,cache/archives/partial}
    : >"$work/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
    local apt=(apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache"
        -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User=root)
    "${as_root[@]}" "${apt[@]}" update
    (cd "$work" && "${as_root[@]}" "${apt[@]}" "$@")
}

if [ ! -x "$tools/qemu10/usr/bin/qemu-aarch64" ]; then
    fetch bookworm-backports "$(dpkg --print-architecture)" download qemu-user/bookworm-backports
    "${as_root[@]}" mkdir -p "$tools"
    "${as_root[@]}" dpkg-deb -x "$work"/qemu-user_*.deb "$tools/qemu10"
fi
"$tools/qemu10/usr/bin/qemu-aarch64" --version | head -n 1

# What the image installs (the last such line of the Dockerfile), with all that it depends on.
packages=$(sed -n 's/.*apt-get install --yes --no-install-recommends \(.*\) \\$/\1/p' deploy/Dockerfile | tail -n 1)
debian=$tools/debian-arm64
if [ "$packages" != "$(cat "$debian/packages" 2>/dev/null)" ]; then
    "${as_root[@]}" rm -rf "$debian"
    read -ra names <<<"$packages"
    fetch bookworm arm64 install --yes --no-install-recommends --download-only "${names[@]}" >/dev/null
    "${as_root[@]}" mkdir -p "$debian"
    for package in "$work"/cache/archives/*.deb; do
        "${as_root[@]}" dpkg-deb -x "$package" "$debian"
    done
    # As its installation does; the emulated Python would take a minute.
    "${as_root[@]}" python3 -m compileall -q -j 0 -s "$debian" -x 'test|idlelib|lib2to3' "$debian"/usr/lib/python3.11 || true
    echo "$packages" | "${as_root[@]}" tee "$debian/packages" >/dev/null
fi
