#!/bin/sh
# Make a stand-in for python:3.11-slim-bookworm where no registry can be reached: Debian bookworm's own Python 3.11,
# installed by mmdebstrap from this host's apt sources and imported under the tag given (default below).
#
#   sh docker/local-base.sh && python3 docker/build.py --base burnish/python:3.11-bookworm
set -eu

tag=${1:-burnish/python:3.11-bookworm}
packages=python3,python3-venv,python3-pip,ca-certificates

set --
for source in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    # Only Debian's own archive: third-party sources need keys that the new root does not have.
    if [ -f "$source" ] && grep -q bookworm "$source"; then set -- "$@" "$source"; fi
done
if [ $# -eq 0 ]; then
    echo "no bookworm source in /etc/apt: this script needs a Debian 12 host" >&2
    exit 1
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mmdebstrap --variant=minbase --include="$packages" bookworm "$folder/base.tar" "$@"
docker import --change 'CMD ["python3"]' "$folder/base.tar" "$tag"
