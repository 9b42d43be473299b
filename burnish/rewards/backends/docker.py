"""A container for each job, with nothing in it but the sandbox: slow to start, and behind the kernel's namespaces too.

Inside, `python -m sandbox run-job` reads the job and decides the verdicts as the pool does: its own sandboxes keep the
expected values from the program, the container keeps the program from the host. Under gVisor, which has no Landlock,
the inner protection is in part missing and results carry the mark.
"""

import json
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import burnish
from burnish.contracts.errors import StageError
from burnish.rewards.backends.backend import Outbox
from sandbox.jobs import Job, JobError, internal_result, result_from_json
from sandbox.verdicts import Result

LABEL = "burnish.sandbox"
GVISOR = "runsc"
_START_S = 60.0
_OUTPUT_LIMIT = 16 * 2**20
_STDOUT = 1


def default_image() -> str:
    return f"burnish/sandbox:{burnish.__version__}"


class DockerBackend:
    """Raises StageError when no daemon answers, or it has not the image or the runtime."""

    def __init__(
        self, image: str, workers: int, runtime: str, allow_degraded: bool, preload: Sequence[str] = ()
    ) -> None:
        from docker.client import from_env
        from docker.errors import DockerException, ImageNotFound

        self._image = image or default_image()
        self._command = ["python3", "-m", "sandbox", "run-job", *(f"--preload={module}" for module in preload)]
        self._command += ["--allow-degraded"] if allow_degraded else []
        try:
            self._client = from_env()
            runtimes = self._client.info()["Runtimes"]
            self._client.images.get(self._image)
        except ImageNotFound:
            raise StageError(
                f"execute.image {self._image!r} is not in the Docker daemon; pull it, or build it with "
                "`python3 docker/build.py sandbox`"
            ) from None
        except DockerException as error:
            raise StageError(
                f"execute.backend=docker: no daemon answers: {' '.join(str(error).split())[:150]}"
            ) from None
        if runtime and runtime not in runtimes:
            raise StageError(f"execute.runtime is {runtime!r}; this Docker daemon has {', '.join(sorted(runtimes))}")
        # gVisor's own kernel has no Landlock, so it is only chosen unasked where going without is allowed.
        self._runtime = runtime or (GVISOR if GVISOR in runtimes and allow_degraded else None)
        self.capacity = 2 * workers
        self._outbox = Outbox()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="docker")

    def submit(self, job: Job) -> None:
        self._threads.submit(self._run, job)

    def collect(self) -> list[tuple[str, Result]]:
        return self._outbox.collect()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._client.close()

    def _run(self, job: Job) -> None:
        from docker.errors import DockerException

        try:
            outcome: Result | Exception = self._in_container(job)
        except DockerException as error:
            outcome = StageError(f"execute.backend=docker: {' '.join(str(error).split())[:300]}")
        except Exception as error:
            outcome = error
        self._outbox.put(job.job_id, outcome)

    def _in_container(self, job: Job) -> Result:
        container = self._client.containers.create(self._image, self._command, **self._isolation(job))
        try:
            attached = container.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            container.start()
            deadline = time.monotonic() + _START_S + job.limits.wall_s + job.limits.compile_s
            out, err = _converse(attached._sock, job.to_json(), deadline)
            attached.close()
        finally:
            _remove(container)
        try:
            return result_from_json(json.loads(out))
        except (ValueError, JobError):
            if b"this machine lacks" in err:
                raise StageError(
                    f"execute: in a container of {self._image}: {err.decode('utf-8', 'replace').strip()[:300]}; "
                    "or set execute.allow_degraded=true"
                ) from None
            return internal_result(job, "the container ended without a result")

    def _isolation(self, job: Job) -> dict[str, Any]:
        """How the container is shut off. Names and values are those of the Docker SDK."""
        memory = f"{2 * job.limits.memory_mb + 256}m"
        return {
            "network_mode": "none",
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "pids_limit": job.limits.processes + 64,
            "mem_limit": memory,
            "memswap_limit": memory,
            "ipc_mode": "private",
            "user": "65532:65532",
            # Docker mounts tmpfs noexec, which would stop compiled programs.
            "tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,size={job.limits.disk_mb + 64}m,mode=1777"},
            "stdin_open": True,
            "runtime": self._runtime,
            "labels": {LABEL: job.owner},
            "log_config": {"Type": "none"},
            # A container whose client is gone ends with its job and goes.
            "auto_remove": True,
        }


def _remove(container: Any) -> None:
    """Docker is on its way to do the same, as asked, and says so with a 404 or a 409."""
    from docker.errors import APIError

    try:
        container.remove(force=True)
    except APIError as error:
        if error.status_code not in {404, 409}:
            raise


def _converse(connection: socket.socket, question: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Send `question`, then all that comes back until the end or the deadline: standard output and error."""
    said = bytearray()
    try:
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        connection.sendall(question)
        connection.shutdown(socket.SHUT_WR)
        while len(said) < _OUTPUT_LIMIT:
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            data = connection.recv(65536)
            if not data:
                break
            said += data
    except OSError:  # a timeout is one too
        pass
    return _streams(bytes(said))


def _streams(said: bytes) -> tuple[bytes, bytes]:
    """Docker's frames (stream, three zero bytes, length, data) as standard output and error."""
    streams: dict[bool, list[bytes]] = {True: [], False: []}
    while len(said) >= 8:
        length = int.from_bytes(said[4:8], "big")
        streams[said[0] == _STDOUT].append(said[8 : 8 + length])
        said = said[8 + length :]
    return b"".join(streams[True]), b"".join(streams[False])
