# server: the warm rollout server, an engine that stays up between rounds. What rollout has, with a command.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/code:${TAG} AS code

FROM ${REPOSITORY}/vllm:${TAG}
COPY --from=code / /opt/burnish/
EXPOSE 8000
# It listens once its engine's packages are imported.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5m \
    CMD ["python3", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=2); \
c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
CMD ["python3", "-m", "burnish.cli.main", "serve", "--host=0.0.0.0"]
ARG VERSION
ARG REVISION
ARG CREATED
ARG SOURCE
ENV BURNISH_GIT_SHA=${REVISION}
LABEL org.opencontainers.image.title="burnish server" \
      org.opencontainers.image.description="Samples completions for rounds, from the policy that they name" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"
