# update: takes the optimizer steps of a round.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/code:${TAG} AS code
FROM ${REPOSITORY}/wheels:${TAG} AS wheels

FROM ${REPOSITORY}/trainer:${TAG}
USER 0
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /constraints.txt track
USER 65532:65532
COPY --from=code / /opt/burnish/
ARG VERSION
ARG REVISION
ARG CREATED
ARG SOURCE
ENV BURNISH_GIT_SHA=${REVISION}
LABEL org.opencontainers.image.title="burnish update" \
      org.opencontainers.image.description="Updates the policy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"
