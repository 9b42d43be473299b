# vllm: the sampling engine on top of torch, with the transformers release that it asks for. rollout and evaluate
# stand on it; ACCELERATOR=cuda takes the CUDA build.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/wheels:${TAG} AS wheels

FROM ${REPOSITORY}/torch:${TAG}
USER 0
ARG ACCELERATOR=cpu
# The vision and audio packages it depends on are not needed, and the CPU build cannot be imported beside them.
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /docker/requirements/constraints-vllm-${ACCELERATOR}.txt vllm-${ACCELERATOR} \
    && sh /docker/install.sh --uninstall torchvision torchaudio torchcodec
# On a GPU, Triton compiles the launcher of each kernel when it is first used.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    if [ "$ACCELERATOR" = cuda ]; then \
        apt-get update -q && apt-get install -yq --no-install-recommends gcc libc6-dev python3-dev; \
    fi
USER 65532:65532
