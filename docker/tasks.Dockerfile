# tasks: the packages that prompts and their verifiers come from. validate and reward stand on it.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/wheels:${TAG} AS wheels

FROM ${REPOSITORY}/base:${TAG}
USER 0
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /constraints.txt tasks
USER 65532:65532
