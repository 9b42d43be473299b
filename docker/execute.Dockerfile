# execute: runs model-written code, always in the sandbox. No torch, no clients but the object store's.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/base:${TAG} AS code
USER 0
COPY burnish /opt/burnish/burnish
COPY sandbox /opt/burnish/sandbox
RUN chmod -R a+rX /opt/burnish && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/burnish

FROM ${REPOSITORY}/base:${TAG}
COPY --from=code /opt/burnish /opt/burnish
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
