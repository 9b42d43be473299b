#!/bin/sh
# How every image installs Debian packages. Certificates come from a build secret, for mirrors that need them; logs and
# caches go, as they differ from build to build.
#
#   apt.sh PACKAGE...
#   apt.sh --compiler [PACKAGE...]
#                     what compiles a Python extension too: headers of Python only where the base has none
set -eu
if [ "$1" = --compiler ]; then
    headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
    shift
    set -- gcc libc6-dev "$@"
    if ! [ -e "$headers/Python.h" ]; then set -- "$@" python3-dev; fi
fi
if [ -s /run/secrets/ca ]; then set -- -o Acquire::https::CAInfo=/run/secrets/ca "$@"; fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -yq --no-install-recommends "$@"
rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/ldconfig/aux-cache
