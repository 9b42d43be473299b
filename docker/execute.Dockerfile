# execute: runs model-written code, always in the sandbox. The smallest image: no torch, no task packages.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/code:${TAG} AS code

FROM ${REPOSITORY}/base:${TAG}
COPY --from=code / /opt/burnish/
ARG VERSION
ARG REVISION
ARG SOURCE
ENV BURNISH_GIT_SHA=${REVISION}
LABEL org.opencontainers.image.title="burnish execute" \
      org.opencontainers.image.description="Runs model-written code in the sandbox" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
