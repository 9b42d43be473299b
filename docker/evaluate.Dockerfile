# evaluate: samples, runs and scores held-out prompts: the only stage beside execute that holds the sandbox.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/vllm:${TAG} AS code
USER 0
COPY burnish /opt/burnish/burnish
COPY sandbox /opt/burnish/sandbox
RUN chmod -R a+rX /opt/burnish && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/burnish

FROM ${REPOSITORY}/wheels:${TAG} AS wheels

FROM ${REPOSITORY}/vllm:${TAG}
USER 0
ARG ACCELERATOR=cpu
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /docker/requirements/constraints-vllm-${ACCELERATOR}.txt tasks track
USER 65532:65532
COPY --from=code /opt/burnish /opt/burnish
ARG VERSION
ARG REVISION
ARG SOURCE
ENV BURNISH_GIT_SHA=${REVISION}
LABEL org.opencontainers.image.title="burnish evaluate" \
      org.opencontainers.image.description="Measures a policy on held-out prompts" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
