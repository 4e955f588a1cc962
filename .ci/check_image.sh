#!/usr/bin/env bash
# Lets an image answer as it is meant to run, and saves it with its bill of materials: check_image.sh IMAGE FOLDER
# No root, no capability, nothing that can be written but /models and memory.
set -euo pipefail
image=${1:?usage: check_image.sh IMAGE FOLDER}
folder=${2:?usage: check_image.sh IMAGE FOLDER}
mkdir -p "$folder"
hardened=(--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --memory 4g)

user=$(docker image inspect --format '{{.Config.User}}' "$image")
case $user in
    "" | root | 0 | 0:* | root:*) echo "$image runs as root" >&2; exit 1 ;;
esac
docker run --rm "${hardened[@]}" "$image" doctor

container=$(docker run --detach "${hardened[@]}" --publish 127.0.0.1::8000 "$image")
trap 'docker rm --force "$container" >/dev/null' EXIT
url=http://$(docker port "$container" 8000/tcp | head -n 1)
for _ in $(seq 120); do
    curl --silent --fail --output /dev/null "$url/health/ready" && break
    [ "$(docker inspect --format '{{.State.Running}}' "$container")" = true ] || break
    sleep 0.5
done
answer=$(curl --silent --show-error --fail "$url/v1/completions" --header 'Content-Type: application/json' \
    --data '{"prompt": "Once upon a time", "max_tokens": 8}') || { docker logs "$container" >&2; exit 1; }
echo "$answer"
grep --quiet '"completion_tokens": *8' <<<"$answer"
# It drains, and so ends by itself and with success.
docker stop --time 60 "$container" >/dev/null
code=$(docker inspect --format '{{.State.ExitCode}}' "$container")
[ "$code" = 0 ] || { echo "$image: exit status $code after SIGTERM" >&2; docker logs "$container" >&2; exit 1; }

docker run --rm --entrypoint cat "$image" /usr/share/doc/lanewise/sbom.cdx.json >"$folder/sbom.cdx.json"
docker save "$image" | gzip >"$folder/image.tar.gz"
ls -l "$folder"
