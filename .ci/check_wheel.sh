#!/usr/bin/env bash
# Installs a wheel into an environment of its own and lets the bundled model answer: check_wheel.sh WHEEL
set -euo pipefail
wheel=$(realpath "${1:?usage: check_wheel.sh WHEEL}")
lock=$(realpath "$(dirname "$0")/../deploy/requirements.lock")
case $wheel in
    *-py3-none-*linux*.whl) ;;
    *) echo "$wheel: not a py3-none-<platform> wheel" >&2; exit 1 ;;
esac
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work" # away from the sources, so that only the installed files can be found

python3 -m venv venv
# With the image's Python also what the image installs, and nothing that it lacks.
if [ "$(venv/bin/python -c 'import sys; print(sys.version_info[:2] == (3, 11))')" = True ]; then
    venv/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --requirement "$lock"
    venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps "$wheel"
    venv/bin/python -m pip --disable-pip-version-check check
else
    venv/bin/python -m pip --disable-pip-version-check install --quiet "$wheel"
fi
[ "$(venv/bin/lanewise --version)" = "lanewise $(basename "$wheel" | cut -d- -f2)" ]
venv/bin/lanewise doctor
port=$(venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
venv/bin/lanewise serve --port "$port" >server.log 2>&1 &
server=$!
for _ in $(seq 120); do
    curl --silent --fail --output ready "$url/health/ready" && break
    kill -0 "$server" 2>/dev/null || { cat server.log; exit 1; }
    sleep 0.5
done
curl --silent --show-error --fail --output answer "$url/v1/completions" --header 'Content-Type: application/json' \
    --data '{"prompt": "Once upon a time", "max_tokens": 8, "stream": true}' || { cat server.log; exit 1; }
tail -n 4 answer
grep --quiet '^data: \[DONE\]' answer
# The page's files are in the wheel too.
for path in / /page/app.js /page/style.css /docs; do
    curl --silent --show-error --fail --header "Accept: text/html,*/*" --output page "$url$path"
done
