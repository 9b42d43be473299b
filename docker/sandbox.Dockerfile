# sandbox: runs model-written code, as the service or for one job, and holds nothing else: Python's standard library,
# no packages, no client of any cloud. Root may be read-only and the user any, given a tmpfs at /tmp.
#   docker run --read-only --tmpfs /tmp:exec --cap-drop ALL --security-opt no-new-privileges burnish/sandbox:TAG
ARG BASE=python:3.11-slim-bookworm
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/code:${TAG} AS code

FROM ${BASE}
# What programs may be written in besides Python and bash, out of: c cpp javascript. Empty: no compiler in the image.
#   python3 docker/build.py sandbox -- --build-arg "LANGUAGES=c cpp javascript"
ARG LANGUAGES=
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=secret,id=ca \
    set -eu; packages=; \
    for language in ${LANGUAGES}; do \
        case ${language} in \
            c) packages="${packages} gcc libc6-dev" ;; \
            cpp) packages="${packages} g++" ;; \
            javascript) packages="${packages} nodejs" ;; \
            *) echo "LANGUAGES: ${language} is none of c cpp javascript" >&2; exit 1 ;; \
        esac; \
    done; \
    if [ -n "${packages}" ]; then sh /docker/apt.sh ${packages}; fi
ENV HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
COPY --from=code /sandbox /opt/burnish/sandbox
WORKDIR /opt/burnish
USER 65532:65532
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["python3", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=2); \
c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
CMD ["python3", "-m", "sandbox", "serve", "--host=0.0.0.0"]
ARG VERSION
ARG REVISION
ARG CREATED
ARG SOURCE
LABEL org.opencontainers.image.title="burnish sandbox" \
      org.opencontainers.image.description="Runs model-written code, behind HTTP" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"
