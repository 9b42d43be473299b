"""The sandbox service over HTTP: batches out, long polls back, and nothing lost when the service goes away.

Jobs carry ids made from their content, so what was in flight when a connection broke or the service was restarted is
simply submitted again; a job the service still knows is not run twice, and each result is taken once.
"""

import logging
import random
import threading
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from burnish.contracts.errors import StageError
from burnish.rewards.backends.backend import Outbox
from burnish.rewards.backends.service_connection import ServiceConnection, ServiceUnavailable
from sandbox.jobs import Job, JobError, result_from_json
from sandbox.verdicts import Result

_logger = logging.getLogger(__name__)

JOBS_PER_LANE = 64
_BATCH_BYTES = 4 * 2**20
_POLL_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0


class ServiceBackend:
    """`lanes` connections, each with its own jobs in flight: behind a load balancer a job stays with its server.

    Raises StageError when the service refuses the client, or for `patience_s` gives no sign of life.
    """

    def __init__(self, url: str, token: str | None, lanes: int, patience_s: float = 300.0) -> None:
        self.capacity = lanes * JOBS_PER_LANE
        self._outbox = Outbox()
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._stop = threading.Event()
        # Refused at once rather than after a round of sampling: a wrong address or token.
        ServiceConnection(url, token).check()
        self._lanes = [
            _Lane(ServiceConnection(url, token), self._inbox, self._outbox, self._stop, patience_s)
            for _ in range(lanes)
        ]
        self._threads = [threading.Thread(target=lane.run, daemon=True) for lane in self._lanes]
        for thread in self._threads:
            thread.start()

    @property
    def resubmitted(self) -> int:
        """Jobs given to the service again because it no longer knew them."""
        return sum(lane.resubmitted for lane in self._lanes)

    def submit(self, job: Job) -> None:
        self._inbox.put(job)

    def collect(self) -> list[tuple[str, Result]]:
        return self._outbox.collect()

    def close(self) -> None:
        self._stop.set()
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            thread.join(timeout=_POLL_S + 5)


class _Lane:
    """One connection and the jobs that are its business."""

    def __init__(
        self,
        connection: ServiceConnection,
        inbox: "SimpleQueue[Job | None]",
        outbox: Outbox,
        stop: threading.Event,
        patience_s: float,
    ) -> None:
        self._connection, self._inbox, self._outbox, self._stop = connection, inbox, outbox, stop
        self._patience_s = patience_s
        self._unsent: dict[str, bytes] = {}  # jobs as JSON, by id
        self._pending: dict[str, bytes] = {}
        self._fetched: list[str] = []
        """Results the service need not keep any longer."""
        self.resubmitted = 0

    def run(self) -> None:
        try:
            while self._take() and not self._stop.is_set():
                self._step()
        except Exception as error:
            self._outbox.put("", error)
        with suppress(ServiceUnavailable, StageError):
            self._connection.forget([*self._fetched, *self._pending])
        self._connection.close()

    def _take(self) -> bool:
        """Fill up with jobs, waiting when there is nothing else to do; False when there will be none."""
        while len(self._unsent) + len(self._pending) < JOBS_PER_LANE:
            try:
                job = self._inbox.get(block=not self._unsent and not self._pending)
            except Empty:
                break
            if job is None:
                return False
            self._unsent[job.job_id] = job.to_json()
        return True

    def _step(self) -> None:
        """Submit what is not submitted, take what is finished; back off while the service cannot."""
        silent, pause = 0.0, _FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                wait_s = self._submit()
                if self._pending:
                    self._poll(_POLL_S if wait_s is None else wait_s)
                elif wait_s is not None:
                    self._stop.wait(wait_s)
                if silent:
                    _logger.warning("sandbox service at %s: it answers again", self._connection.url)
                return
            except ServiceUnavailable as error:
                if silent >= self._patience_s:
                    raise StageError(
                        f"execute: sandbox service {self._connection.url}: {error}, for {silent:.0f} s; "
                        "see that it runs, or set execute.backend=pool"
                    ) from None
                if not silent:
                    _logger.warning("sandbox service at %s: %s; trying again", self._connection.url, error)
                # A little of chance, so that clients of a restarted service do not come back all at once.
                length = max(error.retry_after, pause * random.uniform(0.5, 1.0))
                self._stop.wait(length)
                silent += length
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _submit(self) -> float | None:
        """Submit batches; seconds to wait when the service has no room for all, None when it has."""
        while self._unsent:
            batch = _batch(self._unsent.values())
            accepted, retry_after = self._connection.submit(batch)
            for job_id in accepted:
                self._pending[job_id] = self._unsent.pop(job_id)
            if retry_after is not None:
                return retry_after
        return None

    def _poll(self, wait_s: float) -> None:
        # Many at a time is cheaper; the fewer are left, the sooner each counts.
        least = max(1, len(self._pending) // 4)
        finished, unknown = self._connection.poll(list(self._pending), wait_s, least, forget=self._fetched)
        self._fetched = [job_id for job_id, _ in finished]
        for job_id, result in finished:
            if self._pending.pop(job_id, None) is not None:
                self._outbox.put(job_id, self._checked(result))
        for job_id in unknown:
            if job_id in self._pending:
                self._unsent[job_id] = self._pending.pop(job_id)
                self.resubmitted += 1

    def _checked(self, raw: dict[str, Any]) -> Result:
        try:
            return result_from_json(raw)
        except JobError as error:
            raise StageError(
                f"execute: sandbox service {self._connection.url}: {error}; install the same one"
            ) from None


def _batch(lines: Iterable[bytes]) -> list[bytes]:
    """As many jobs as fit into one request, and one at least."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        size += len(line)
        if batch and size > _BATCH_BYTES:
            break
        batch.append(line)
    return batch
