# code: burnish, the sandbox and the pipelines with their bytecode, the last layer of every stage. All stages get the
# same code, so that they agree on its digest, under which results are remembered.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/base:${TAG} AS build
USER 0
COPY burnish /opt/burnish/burnish
COPY sandbox /opt/burnish/sandbox
# Not for the stages: for whoever compiles or submits a pipeline in a container.
COPY components /opt/burnish/components
COPY pipelines /opt/burnish/pipelines
# By this record of a package, tools that list what is in an image find Burnish too.
ARG VERSION
RUN mkdir "/opt/burnish/burnish-${VERSION}.dist-info" \
    && printf 'Metadata-Version: 2.4\nName: burnish\nVersion: %s\nLicense-Expression: Apache-2.0\n' "${VERSION}" \
        > "/opt/burnish/burnish-${VERSION}.dist-info/METADATA"
# Bytecode that never looks at its source starts faster, and survives tools that change modification times.
RUN chmod -R a+rX /opt/burnish && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/burnish

FROM scratch
COPY --from=build /opt/burnish /
