# wheels: what the package index does not have as a wheel for us. Never run; the other builds mount it.
# Its context is a folder that build.py fills: the scripts, requirements/sdists.txt and the wheels found by --wheels.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS build
RUN --mount=type=bind,target=/docker \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=secret,id=ca \
    sh /docker/apt.sh --compiler
RUN --mount=type=bind,target=/docker \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh --compile /wheels

FROM scratch
COPY --from=build /wheels /
COPY wheels /
