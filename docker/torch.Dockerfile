# torch: PyTorch. sft, logprob and update stand on it through trainer, rollout and evaluate through vllm.
# ACCELERATOR=cuda takes the index's ordinary torch wheel with its CUDA libraries.
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/wheels:${TAG} AS wheels

FROM ${REPOSITORY}/base:${TAG}
USER 0
# tcmalloc takes about 30 % off a forward and backward pass on CPU.
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=secret,id=ca \
    sh /docker/apt.sh libtcmalloc-minimal4
ARG ACCELERATOR=cpu
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /constraints.txt torch --constraint=/docker/requirements/constraints-torch.txt
# What the node mounts of its GPU driver; utility is nvidia-smi, by which a run's load is tracked. Which GPUs a container
# sees is never an image's to say.
ENV LD_PRELOAD=libtcmalloc_minimal.so.4 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
