"""The Docker daemon behind `burnish run --runner docker`: is it there, and what did a run leave in it?"""

from burnish.contracts.errors import BurnishError

# Containers outlive the client that started them; the label is how `burnish run` finds what to remove.
RUN_LABEL = "burnish.run_id"


def check_daemon() -> None:
    """Raises BurnishError where no daemon answers."""
    try:
        from docker.client import from_env
        from docker.errors import DockerException
    except ImportError:
        raise BurnishError("--runner docker needs the docker package: pip install 'burnish[local]'") from None
    try:
        from_env().ping()
    except DockerException as error:
        raise BurnishError(
            f"--runner docker: no Docker daemon answers ({' '.join(str(error).split())[:150]}); "
            "start one, or set DOCKER_HOST"
        ) from None


def remove_containers(run_id: str) -> None:
    """Containers go on when KFP's runner is killed; a second run must not meet one that still writes."""
    from docker.client import from_env

    for container in from_env().containers.list(all=True, filters={"label": f"{RUN_LABEL}={run_id}"}):
        container.remove(force=True)
