# wheels: what the package index does not have as a wheel for us. Never run; the other builds mount it.
# Its context is a folder that build.py fills: install.sh, requirements/sdists.txt and the wheels found by --wheels.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS build
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    apt-get update -q \
    && apt-get install -yq --no-install-recommends gcc libc6-dev \
    && { [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] \
         || apt-get install -yq --no-install-recommends python3-dev; }
RUN --mount=type=bind,target=/docker \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh --compile /wheels

FROM scratch
COPY --from=build /wheels /
COPY wheels /
