# evaluate: samples, runs and scores held-out prompts; model-written code runs in the sandbox here too.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/code:${TAG} AS code
FROM ${REPOSITORY}/wheels:${TAG} AS wheels

FROM ${REPOSITORY}/vllm:${TAG}
USER 0
ARG ACCELERATOR=cpu
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /docker/requirements/constraints-vllm-${ACCELERATOR}.txt tasks cluster
USER 65532:65532
COPY --from=code / /opt/burnish/
ARG VERSION
ARG REVISION
ARG CREATED
ARG SOURCE
ENV BURNISH_GIT_SHA=${REVISION}
LABEL org.opencontainers.image.title="burnish evaluate" \
      org.opencontainers.image.description="Measures a policy on held-out prompts" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"
