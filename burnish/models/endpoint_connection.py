"""Pooled HTTP connections to a rollout server, and what its answers mean.

Every failure is one of two: the server cannot now and may later, or it never will as things are set up.
"""

import json
from typing import Any

import urllib3

from burnish.contracts.errors import StageError
from burnish.contracts.sampling import ROLLOUT_TOKEN

# A completion's answer comes when it is drawn; asked again after the limit, it is not drawn anew.
_CONNECT_S, _ANSWER_S = 5.0, 600.0
# Conflict, too many requests, and what a server or a proxy says while a server restarts.
_PASSING = {409, 429, 500, 502, 503, 504}


class EndpointUnavailable(Exception):
    """It cannot now; try again in `retry_after` seconds, or later."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EndpointConnection:
    """Methods raise EndpointUnavailable, and StageError when trying again would not help. For many threads."""

    def __init__(self, url: str, token: str | None, most: int) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._http = urllib3.PoolManager(num_pools=1, maxsize=most)

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status (200 or 202) and answer."""
        try:
            answer = self._http.request(
                "POST",
                self.url + path,
                body=json.dumps(body).encode(),
                headers=self._headers,
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=_ANSWER_S),
                retries=False,
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise EndpointUnavailable(f"no answer ({type(error).__name__})") from None
        try:
            said = json.loads(answer.data)
            if answer.status in {200, 202} and isinstance(said, dict):
                return answer.status, said
            reason = str(said["error"])
        except (ValueError, KeyError, TypeError):
            reason = ""
        if answer.status in _PASSING:
            after = answer.headers.get("Retry-After", "")
            raise EndpointUnavailable(reason or f"it answers {answer.status}", float(after) if after.isdigit() else 0.0)
        if answer.status == 401:
            raise StageError(f"rollout server {self.url} wants another token; set {ROLLOUT_TOKEN} to the server's")
        raise StageError(
            f"rollout server {self.url}{path} answers {answer.status}: {reason or 'what answers is no rollout server'}"
        )

    def close(self) -> None:
        self._http.clear()
