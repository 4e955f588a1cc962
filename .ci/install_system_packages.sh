#!/usr/bin/env bash
# Installs what the complete test run needs beyond a C compiler and python3 (Debian 12; root or sudo):
# the aarch64 cross compiler, two emulators, LLVM's pipeline model, Clang with libFuzzer, Prometheus,
# HAProxy, and a browser with a font.
#   qemu-aarch64             the distribution's: takes plugins, which count instructions
#   $tools/qemu10/...        from backports: knows Neoverse V1 and N2. Unpacked, not installed, so both exist side by side.
set -euo pipefail
tools=${LANEWISE_ARM_TOOLS:-/opt/lanewise-arm}
export DEBIAN_FRONTEND=noninteractive
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo --preserve-env=DEBIAN_FRONTEND)

"${as_root[@]}" apt-get -qq update
"${as_root[@]}" apt-get -qq install -y --no-install-recommends \
    gcc libc6-dev make git curl python3 python3-venv ca-certificates xz-utils \
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user llvm-19 clang-19 libclang-rt-19-dev prometheus haproxy chromium fonts-dejavu-core >/dev/null
# The package starts a server of its own where there is an init system; the tests start theirs.
"${as_root[@]}" systemctl disable --now prometheus prometheus-node-exporter >/dev/null 2>&1 || true

[ -x "$tools/qemu10/usr/bin/qemu-aarch64" ] && exit
# shellcheck disable=SC2016 # $(SITE) is a placeholder of apt-get, not a command
mirror=$(apt-get indextargets --format '$(SITE)' 'Codename: bookworm' | head -n 1)
[ -n "$mirror" ] || { echo "no apt source for Debian bookworm: cannot fetch the newer emulator" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial}
cat >"$work/sources.list" <<EOF
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main
EOF
apt=(apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
"${as_root[@]}" "${apt[@]}" update
cd "$work"
"${as_root[@]}" "${apt[@]}" download qemu-user/bookworm-backports
"${as_root[@]}" mkdir -p "$tools"
"${as_root[@]}" dpkg-deb -x qemu-user_*.deb "$tools/qemu10"
"$tools/qemu10/usr/bin/qemu-aarch64" --version | head -n 1
