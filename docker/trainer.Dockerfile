# trainer: torch with transformers and peft. sft, logprob and update stand on it.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/wheels:${TAG} AS wheels

FROM ${REPOSITORY}/torch:${TAG}
USER 0
ARG ACCELERATOR=cpu
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /constraints.txt trainer --constraint=/docker/requirements/constraints-torch.txt
USER 65532:65532
