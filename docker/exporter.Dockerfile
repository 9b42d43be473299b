# exporter: figures of the runs in the store, for Prometheus. Base and code alone.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/code:${TAG} AS code

FROM ${REPOSITORY}/base:${TAG}
COPY --from=code / /opt/burnish/
EXPOSE 9095
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python3", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 9095, timeout=2); \
c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
CMD ["python3", "-m", "burnish.cli.main", "exporter", "--host=0.0.0.0"]
ARG VERSION
ARG REVISION
ARG CREATED
ARG SOURCE
ENV BURNISH_GIT_SHA=${REVISION}
LABEL org.opencontainers.image.title="burnish exporter" \
      org.opencontainers.image.description="Serves figures of runs to Prometheus" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"
