"""The rollout server's HTTP interface.

    POST /burnish/policy   {"policy", "holder", "label"?}: hold that policy    200 loaded, 202 loading, 409 another is
                                                                               held, 422 it cannot be loaded
    POST /burnish/release  {"holder"}: hold none any longer                    200
    GET  /burnish/version  what is loaded, and who holds it                    200
    POST /v1/completions   OpenAI's, over token ids; `model` is the policy     200, 409 another is loaded
    GET  /v1/models        OpenAI's: the policy that is loaded                 200
    GET  /healthz, /readyz, /metrics

A policy is named by the digest of its manifest in the store. All but the last line need the bearer token.
"""

import asyncio
import hmac
import re
import time
from typing import Any

from burnish.serve.completions import parse_completion
from burnish.serve.server import PolicyServer
from sandbox.http_server import HttpError, Request, Response

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 200


class Routes:
    """`handle` is the server's handler."""

    def __init__(self, server: PolicyServer, token: str | None) -> None:
        self._server, self._token = server, token

    async def handle(self, request: Request) -> Response:
        server, place = self._server, f"{request.method} {request.path}"
        if place == "GET /healthz":
            return Response(200, {"status": "alive"})
        if place == "GET /readyz":
            return Response(503 if server.draining else 200, {"status": "draining" if server.draining else "ready"})
        if place == "GET /metrics":
            return Response(200, self._metrics())
        self._authorize(request)
        try:
            if place == "POST /v1/completions":
                return await self._complete(request)
            if place == "POST /burnish/policy":
                return self._hold(request)
            if place == "POST /burnish/release":
                server.release(_text(_object(request), "holder"))
                return Response(200, {})
        except HttpError as error:
            server.metrics.refused["invalid"] += error.status == 400
            raise
        if place == "GET /burnish/version":
            return Response(200, server.state())
        if place == "GET /v1/models":
            digest = server.state()["policy"]
            models = [{"id": digest, "object": "model", "created": 0, "owned_by": "burnish"}] if digest else []
            return Response(200, {"object": "list", "data": models})
        raise HttpError(404, f"there is no {place}")

    def _authorize(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        # Compared as bytes: compare_digest takes no text outside ASCII.
        if self._token is not None and not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            self._server.metrics.refused["unauthorized"] += 1
            raise HttpError(401, "a bearer token is needed, and this one is not it")

    def _hold(self, request: Request) -> Response:
        raw = _object(request)
        digest, holder = _text(raw, "policy"), _text(raw, "holder")
        if not _DIGEST.fullmatch(digest):
            raise HttpError(400, "policy must be the digest of a manifest, 64 hexadecimal digits")
        loaded = self._server.hold(digest, holder, _text(raw, "label") if "label" in raw else holder)
        return Response(200 if loaded else 202, self._server.state())

    async def _complete(self, request: Request) -> Response:
        asked = parse_completion(_object(request))
        server = self._server
        asked.check(server.settings.max_length)
        asking = [server.ask(asked.model, asked.user, question, request.gone) for question in asked.questions]
        return Response(200, asked.response(await asyncio.gather(*asking), created=int(time.time())))

    def _metrics(self) -> str:
        server, state = self._server, self._server.state()
        gauges = {
            "burnish_rollout_in_flight": ("Completions being drawn or waiting to be.", float(server.in_flight)),
            "burnish_rollout_holders": ("Stages and shards that hold the policy.", float(len(state["holders"]))),
            "burnish_rollout_loading": ("1 while a policy is being loaded.", float(state["state"] == "loading")),
            "burnish_rollout_ready": ("1 while a policy is loaded and answers.", float(state["state"] == "ready")),
        }
        return server.metrics.render(gauges, state["policy"], state["policy_version"])


def _object(request: Request) -> dict[str, Any]:
    raw = request.json()
    if not isinstance(raw, dict):
        raise HttpError(400, "the body must be a JSON object")
    return raw


def _text(raw: dict[str, Any], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        raise HttpError(400, f"{name} must be a text of 1 to {_LONGEST_NAME} characters")
    return value
