# validate: checks a run before any other stage starts, and draws its prompts. No torch. It can also compile and upload
# pipelines: `python3 -m burnish.cli.main submit --upload-only`, as the chart's job does.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/code:${TAG} AS code
FROM ${REPOSITORY}/wheels:${TAG} AS wheels

FROM ${REPOSITORY}/tasks:${TAG}
USER 0
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /constraints.txt tokenizers submit
USER 65532:65532
COPY --from=code / /opt/burnish/
ARG VERSION
ARG REVISION
ARG CREATED
ARG SOURCE
ENV BURNISH_GIT_SHA=${REVISION}
LABEL org.opencontainers.image.title="burnish validate" \
      org.opencontainers.image.description="Checks a run and draws its prompts" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"
