# rollout: samples completions from a policy, with vLLM or with transformers.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/code:${TAG} AS code

FROM ${REPOSITORY}/vllm:${TAG}
COPY --from=code / /opt/burnish/
ARG VERSION
ARG REVISION
ARG CREATED
ARG SOURCE
ENV BURNISH_GIT_SHA=${REVISION}
LABEL org.opencontainers.image.title="burnish rollout" \
      org.opencontainers.image.description="Samples completions from a policy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"
