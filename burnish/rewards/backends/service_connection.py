"""One kept-alive HTTP connection to the sandbox service, and what its answers mean.

Every failure is one of two: the service cannot now and may later, or it never will as things are set up.
"""

import json
from collections.abc import Sequence
from typing import Any

import urllib3

from burnish.contracts.errors import StageError

_CONNECT_S, _ANSWER_S = 5.0, 30.0
# Statuses that pass: too many requests, and what a server or a proxy says while a server restarts.
_PASSING = {429, 500, 502, 503, 504}


class ServiceUnavailable(Exception):
    """It cannot now; try again in `retry_after` seconds, or later."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServiceConnection:
    """Methods raise ServiceUnavailable, and StageError when trying again would not help."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        # One connection a pool: jobs and polls of one lane must reach the same server.
        self._http = urllib3.PoolManager(num_pools=1, maxsize=1)

    def check(self) -> None:
        """Whether there is a service that takes this token; one that is just away is given the benefit of the doubt."""
        try:
            self.poll([], 0, 1, forget=[])
        except ServiceUnavailable:
            return

    def submit(self, jobs: Sequence[bytes]) -> tuple[list[str], float | None]:
        """Ids of the `jobs` (as JSON) that the service took, and how long to wait with the others if it has no room."""
        body = b'{"jobs":[' + b",".join(jobs) + b"]}"
        try:
            answers = self._ask("/v1/jobs", body)["jobs"]
        except ServiceUnavailable as error:
            if error.retry_after:
                return [], error.retry_after
            raise
        taken = [answer["job_id"] for answer in answers if "error" not in answer]
        for answer in answers:
            if "error" in answer and answer["status"] not in _PASSING:
                raise StageError(f"execute: sandbox service {self.url} refuses a job: {answer['error']}")
        return taken, None if len(taken) == len(jobs) else 1.0

    def poll(
        self, ids: Sequence[str], wait_s: float, least: int, forget: Sequence[str]
    ) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
        """Ids and results of the finished, and the ids that the service does not know."""
        question = {"ids": ids, "wait_s": wait_s, "least": least, "forget": forget}
        answer = self._ask("/v1/jobs/poll", json.dumps(question).encode(), wait_s)
        return [(view["job_id"], view["result"]) for view in answer["finished"]], list(answer["unknown"])

    def forget(self, ids: Sequence[str]) -> None:
        """Drop jobs, done or not, and their results."""
        if ids:
            self.poll([], 0, 1, forget=ids)

    def close(self) -> None:
        self._http.clear()

    def _ask(self, path: str, body: bytes, extra_s: float = 0.0) -> dict[str, Any]:
        timeout = urllib3.Timeout(connect=_CONNECT_S, read=_ANSWER_S + extra_s)
        try:
            answer = self._http.request(
                "POST",
                self.url + path,
                body=body,
                headers=self._headers,
                timeout=timeout,
                retries=False,
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ServiceUnavailable(f"no answer ({type(error).__name__})") from None
        if answer.status in _PASSING:
            after = answer.headers.get("Retry-After", "")
            raise ServiceUnavailable(f"it answers {answer.status}", float(after) if after.isdigit() else 0.0)
        if answer.status == 401:
            raise StageError(
                f"execute: sandbox service {self.url} wants another token; set BURNISH_SANDBOX_TOKEN to the service's"
            )
        try:
            said = json.loads(answer.data)
            if answer.status in {200, 202} and isinstance(said, dict):
                return said
            reason = said["error"]
        except (ValueError, KeyError, TypeError):
            reason = "what answers is no sandbox service"
        raise StageError(f"execute: {self.url}{path} answers {answer.status}: {reason}")
