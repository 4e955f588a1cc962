#!/usr/bin/env bash
# Creates a virtual environment with pip: create_venv.sh PYTHON FOLDER
# Debian and Ubuntu ship python3 without ensurepip; then pip comes from whatever this machine has.
set -euo pipefail
python=${1:?usage: create_venv.sh PYTHON FOLDER}
venv=${2:?usage: create_venv.sh PYTHON FOLDER}

"$python" - <<'EOF'
import sys

if sys.version_info < (3, 11):
    sys.exit(f"Lanewise needs Python 3.11 or later; {sys.executable} is {sys.version.split()[0]}")
EOF

# The distribution's own pip, unpacked and not installed: this needs neither root nor a change to the system.
pip_from_debian() {
    local apt="$PWD/$venv/apt"
    local options=(-qq -o Dir::State="$apt/state" -o Dir::Cache="$apt/cache" -o Debug::NoLocking=1
        -o APT::Sandbox::User="$(id -un)")
    mkdir -p "$apt"/state/lists/partial "$apt"/cache/archives/partial
    apt-get "${options[@]}" update &&
        (cd "$apt" && apt-get "${options[@]}" download python3-pip-whl && dpkg-deb -x python3-pip-whl_*.deb .) &&
        PYTHONPATH=$(echo "$apt"/usr/share/python-wheels/pip-*.whl) "$venv/bin/python" -m pip install --quiet pip &&
        rm -rf "$apt"
}

create() {
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv "$venv"
        return
    fi
    "$python" -m venv --without-pip "$venv"
    if "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m pip --python "$venv/bin/python" install --quiet pip
        return
    fi
    if ! pip_from_debian; then
        echo "Python's ensurepip is missing. Install it with:  sudo apt-get install python3-venv" >&2
        exit 1
    fi
}

trap 'rm -rf "$venv"' EXIT # half an environment would pass for a whole one, after Ctrl-C as well
create
trap - EXIT
