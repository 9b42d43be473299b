"""The service's HTTP interface: requests to calls of `Service`, and what comes of them to JSON.

    POST   /v1/jobs        {job} or {"jobs": [job, ...]}: queue them                  202, 429, 503
    POST   /v1/jobs/poll   {"ids", "wait_s"?, "least"?, "forget"?}: wait for `least` of them  200
    GET    /v1/jobs/<id>   state, and the result once it is finished                  200, 404
    DELETE /v1/jobs/<id>   drop it; ends a running one                                200, 404
    POST   /v1/run         {job}: queue it and wait for the result                    200, 429, 503
    GET    /healthz, /readyz, /metrics

A job is what `sandbox.jobs.parse_job` takes. The same id with the same content is the same job; with other content it
is a 409.
"""

import hmac
import time
import uuid
from typing import Any
from urllib.parse import unquote

from sandbox.http_server import HttpError, Request, Response, error_response
from sandbox.job_table import Entry, JobConflict, TableFull
from sandbox.jobs import JobError, parse_job
from sandbox.service import Draining, Service

_MAX_WAIT_S = 30.0
_MAX_IDS = 2000


class Routes:
    """`handle` is the server's handler."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def handle(self, request: Request) -> Response:
        path, method = request.path, request.method
        if method == "GET" and path == "/healthz":
            return Response(200, {"status": "alive"})
        if method == "GET" and path == "/readyz":
            draining = self._service.draining
            return Response(503 if draining else 200, {"status": "draining" if draining else "ready"})
        if method == "GET" and path == "/metrics":
            return Response(200, self._metrics())
        self._authorize(request)
        if path == "/v1/jobs/poll":
            return await self._poll(_allowed(request, "POST"))
        if path == "/v1/run":
            return await self._run(_allowed(request, "POST"))
        if path == "/v1/jobs":
            return self._submit(_allowed(request, "POST"))
        if path.startswith("/v1/jobs/"):
            return self._one(_allowed(request, "GET", "DELETE"), unquote(path.removeprefix("/v1/jobs/")))
        raise HttpError(404, "there is no such path")

    def _authorize(self, request: Request) -> None:
        token = self._service.settings.token
        given = request.headers.get("authorization", "")
        # Compared as bytes: compare_digest takes no text outside ASCII.
        if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            self._service.metrics.rejected["unauthorized"] += 1
            raise HttpError(401, "a bearer token is needed, and this one is not it")

    def _submit(self, request: Request) -> Response:
        raw = request.json()
        if not isinstance(raw, dict) or "jobs" not in raw:
            return Response(202, _view(self._accept(raw)))
        if set(raw) != {"jobs"} or not isinstance(raw["jobs"], list) or not 0 < len(raw["jobs"]) <= _MAX_IDS:
            raise HttpError(400, f"jobs must be a list of 1 to {_MAX_IDS}, and nothing may stand beside it")
        answers: list[dict[str, Any]] = []
        refusals: list[HttpError] = []
        for job in raw["jobs"]:
            try:
                answers.append(_view(self._accept(job)))
            except HttpError as error:
                refusals.append(error)
                named = {"job_id": job["job_id"]} if isinstance(job, dict) and "job_id" in job else {}
                answers.append({**named, "status": error.status, "error": str(error)})
        # A batch of which nothing could be taken is told as a single job would be.
        if len(refusals) == len(answers) and refusals[0].retry_after is not None:
            told = error_response(refusals[0])
            return Response(told.status, {"jobs": answers}, told.headers)
        return Response(202, {"jobs": answers})

    async def _poll(self, request: Request) -> Response:
        raw = request.json()
        if not isinstance(raw, dict) or not set(raw) <= {"ids", "wait_s", "least", "forget"}:
            raise HttpError(400, "a poll is {ids, wait_s?, least?, forget?}")
        ids, forget = _ids(raw, "ids"), _ids(raw, "forget")
        seconds, least = raw.get("wait_s", 0), raw.get("least", 1)
        if type(seconds) not in {int, float} or not seconds >= 0 or type(least) is not int or least < 1:
            raise HttpError(400, "wait_s must be a number of seconds, and least a number of jobs")
        for job_id in forget:
            self._service.forget(job_id)
        known = {job_id: entry for job_id in ids if (entry := self._service.table.entries.get(job_id)) is not None}
        for entry in known.values():
            entry.touched = time.monotonic()
        if known and len(known) == len(ids):
            seconds, least = min(seconds, self._longest_wait()), min(least, len(known))
            await self._service.wait(list(known.values()), seconds, request.gone, least)
        unknown = [job_id for job_id in ids if job_id not in self._service.table.entries]
        finished = [entry for entry in known.values() if entry.state == "finished" and entry.job_id not in unknown]
        return Response(
            200,
            {
                "finished": [_view(entry) for entry in finished],
                "unknown": unknown,
                "pending": len(ids) - len(finished) - len(unknown),
            },
        )

    async def _run(self, request: Request) -> Response:
        raw = request.json()
        job_id = raw.get("job_id") if isinstance(raw, dict) else None
        ours = job_id not in self._service.table.entries if isinstance(job_id, str) else True
        entry = self._accept(raw)
        while not self._service.over(entry) and not request.gone():
            await self._service.wait([entry], _MAX_WAIT_S, request.gone)
        if entry.state != "finished":
            if ours and request.gone():
                self._service.forget(entry.job_id)
            raise HttpError(503, "the job was not run; submit it again", retry_after=1)
        view = _view(entry)
        if job_id is None:  # nobody knows its id, so nobody will ask again
            self._service.forget(entry.job_id)
        return Response(200, view)

    def _one(self, request: Request, job_id: str) -> Response:
        service = self._service
        entry = service.table.entries.get(job_id) if request.method == "GET" else service.forget(job_id)
        if entry is None:
            raise HttpError(404, "there is no such job; results are dropped some time after they are ready")
        if request.method == "DELETE":
            return Response(200, {"job_id": job_id, "state": "forgotten", "was": entry.state})
        return Response(200, _view(entry))

    def _accept(self, raw: Any) -> Entry:
        service = self._service
        try:
            return service.submit(parse_job(raw, service.settings.most, job_id=uuid.uuid4().hex))
        except (JobError, RecursionError) as error:
            service.metrics.rejected["invalid"] += 1
            raise HttpError(400, str(error)) from None
        except JobConflict as error:
            service.metrics.rejected["conflict"] += 1
            raise HttpError(409, str(error)) from None
        except TableFull as error:
            raise HttpError(429, str(error), service.retry_after()) from None
        except Draining as error:
            raise HttpError(503, str(error), retry_after=1) from None

    def _longest_wait(self) -> float:
        return min(_MAX_WAIT_S, self._service.settings.bounds.ttl_s / 2)

    def _metrics(self) -> str:
        service = self._service
        gauges = {
            "sandbox_queue_jobs": ("Jobs waiting for a worker.", float(service.table.queued)),
            "sandbox_running_jobs": ("Jobs being run.", float(service.running)),
            "sandbox_workers": ("Programs that can run at a time.", float(service.pool.size)),
            "sandbox_known_jobs": (
                "Jobs queued, running, or with a result on hold.",
                float(len(service.table.entries)),
            ),
            "sandbox_held_bytes": ("Programs, tests and results on hold.", float(service.table.memory)),
            "sandbox_draining": ("1 once the service is shutting down.", float(service.draining)),
        }
        return service.metrics.render(gauges, service.pool.restarts)


def _allowed(request: Request, *methods: str) -> Request:
    if request.method not in methods:
        raise HttpError(405, f"this path takes {' and '.join(methods)}")
    return request


def _ids(raw: dict[str, Any], name: str) -> list[str]:
    ids = raw.get(name, [])
    if not isinstance(ids, list) or len(ids) > _MAX_IDS or not all(isinstance(one, str) for one in ids):
        raise HttpError(400, f"{name} must be a list of at most {_MAX_IDS} strings")
    return list(dict.fromkeys(ids))


def _view(entry: Entry) -> dict[str, Any]:
    view = {"job_id": entry.job_id, "state": entry.state}
    if entry.state == "finished":
        entry.delivered = True
        return view | {"result": entry.result}
    return view
