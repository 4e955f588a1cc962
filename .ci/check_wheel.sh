#!/usr/bin/env bash
# Builds the wheel, installs it into an environment of its own and lets the bundled model answer one request.
set -euo pipefail
cd "$(dirname "$0")/.."
make wheel
work=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
wheels=(dist/lanewise-*-py3-none-*.whl)
[ ${#wheels[@]} = 1 ] || { echo "expected one py3-none wheel in dist, found: ${wheels[*]}" >&2; exit 1; }

.venv/bin/python -m venv "$work/venv"
"$work/venv/bin/pip" --disable-pip-version-check install --quiet "${wheels[0]}"
cd "$work" # away from the sources
"$work/venv/bin/lanewise" doctor
port=$("$work/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$work/venv/bin/lanewise" serve --port "$port" >server.log 2>&1 &
server=$!
for _ in $(seq 120); do
    curl --silent --fail "http://127.0.0.1:$port/health/ready" >/dev/null && break
    kill -0 "$server" 2>/dev/null || { cat server.log; exit 1; }
    sleep 0.5
done
answer=$(curl --silent --show-error --fail "http://127.0.0.1:$port/v1/completions" \
    --header 'Content-Type: application/json' --data '{"prompt": "Once upon a time", "max_tokens": 8, "stream": true}') ||
    { cat server.log; exit 1; }
echo "$answer" | tail -n 3
grep --quiet '^data: \[DONE\]' <<<"$answer"
