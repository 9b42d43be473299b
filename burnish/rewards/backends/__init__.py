"""Where model-written code is run: in this process's sandboxes, in a service, in containers, in a cluster's sandboxes.

All take `sandbox.jobs.Job` and give `sandbox.verdicts.Result`; which one is used changes no verdict.
"""

import os
from collections.abc import Callable

from burnish.contracts.execution import ExecuteConfig
from burnish.rewards.backends.backend import Backend

TOKEN_VARIABLE = "BURNISH_SANDBOX_TOKEN"


def open_backend(config: ExecuteConfig) -> Backend:
    """The backend of the configuration, ready for jobs. Raises StageError when it cannot run any."""
    openers: dict[str, Callable[[ExecuteConfig], Backend]] = {
        "pool": _pool,
        "service": _service,
        "docker": _docker,
        "kubernetes": _kubernetes,
    }
    return openers[config.backend](config)


def _pool(config: ExecuteConfig) -> Backend:
    from burnish.rewards.backends.pool import PoolBackend

    return PoolBackend(config.workers, config.allow_degraded, config.preload, config.enclosure)


def _service(config: ExecuteConfig) -> Backend:
    from burnish.rewards.backends.service import ServiceBackend

    return ServiceBackend(config.service_url, os.environ.get(TOKEN_VARIABLE), config.workers)


def _docker(config: ExecuteConfig) -> Backend:
    from burnish.rewards.backends.docker import DockerBackend

    return DockerBackend(config.image, config.workers, config.runtime, config.allow_degraded, config.preload)


def _kubernetes(config: ExecuteConfig) -> Backend:
    from burnish.rewards.backends.kubernetes import KubernetesBackend

    return KubernetesBackend(config)
