#!/usr/bin/env bash
# Whether a tag is the version of the sources, and the changelog has it: check_tag.sh vX.Y.Z
set -euo pipefail
tag=${1:?usage: check_tag.sh vX.Y.Z}
cd "$(dirname "$0")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' service/lanewise/__init__.py)
if [ "$tag" != "v$version" ]; then
    echo "the tag is $tag, but service/lanewise/__init__.py says $version: it should be v$version" >&2
    exit 1
fi
if ! grep --quiet "^## $version\b" CHANGELOG.md; then
    echo "CHANGELOG.md has no section '## $version': what is under 'Unreleased' belongs there" >&2
    exit 1
fi
