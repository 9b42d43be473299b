# base: Python, the KFP executor and the object store client, under a user that is not root. Every image stands on it.
ARG BASE=python:3.11-slim-bookworm
ARG REPOSITORY=burnish
ARG TAG
FROM ${REPOSITORY}/wheels:${TAG} AS wheels

FROM ${BASE}
# HOME is /tmp because it is what can be written to under any user id and with a read-only root.
# USER names the user to programs that would otherwise look an unknown id up and fail.
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    USER=burnish \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    MLFLOW_DISABLE_TELEMETRY=true \
    VLLM_NO_USAGE_STATS=1
RUN echo burnish:x:65532: >> /etc/group \
    && echo burnish:x:65532:65532::/tmp:/usr/sbin/nologin >> /etc/passwd \
    && python3 -m venv --without-pip /opt/venv \
    && echo /opt/burnish > "$(/opt/venv/bin/python3 -c 'import site; print(site.getsitepackages()[0])')/burnish.pth"
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca --mount=type=secret,id=pip \
    sh /docker/install.sh /constraints.txt base \
    && sh /docker/install.sh /constraints.txt --no-deps executor
WORKDIR /tmp
USER 65532:65532
CMD ["python3"]
