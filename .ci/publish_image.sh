#!/usr/bin/env bash
# Pushes saved images as one for all architectures: publish_image.sh NAME vX.Y.Z FOLDER...
# A folder is image-<architecture>, as check_image.sh filled it. Prints name=, digest= and one digest for each architecture.
set -euo pipefail
name=${1:?usage: publish_image.sh NAME vX.Y.Z FOLDER...}
version=${2:?usage: publish_image.sh NAME vX.Y.Z FOLDER...}
shift 2
name=${name,,} # registries know no capital letters
version=${version#v}

digest_of() {
    docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$1"
}

parts=()
echo "name=$name"
for folder in "$@"; do
    architecture=${folder##*image-}
    part=$name:$version-$architecture
    # Its name there is the same for every architecture.
    docker load --input "$folder/image.tar.gz" >&2
    docker tag lanewise "$part"
    docker push "$part" >&2
    echo "$architecture=$(digest_of "$part")"
    parts+=("$part")
done
docker buildx imagetools create --tag "$name:$version" --tag "$name:latest" "${parts[@]}" >&2
echo "digest=$(digest_of "$name:$version")"
