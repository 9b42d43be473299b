"""An Engine that asks a warm rollout server: it holds the policy there while it draws, and takes answers of no other.

Requests are named by what they ask for, so a broken connection or a restarted server costs time and nothing else: what
was not answered is asked again, with the same seed.
"""

import logging
import os
import queue
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from math import nan
from typing import Any, TypeVar

from burnish.contracts.errors import StageError
from burnish.contracts.sampling import ROLLOUT_TOKEN, EndpointConfig
from burnish.models.endpoint_connection import EndpointConnection, EndpointUnavailable
from burnish.models.engine import Completion, Request, Sampling

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_LOADING_PAUSE_S = 0.2
_SAY_AFTER_S, _SAY_EVERY_S = 5.0, 30.0

_logger = logging.getLogger(__name__)
AnswerT = TypeVar("AnswerT")


class EndpointEngine:
    """Draws with policy `policy` on the server of `settings`; it is held there from here to the end of `generate`."""

    def __init__(self, settings: EndpointConfig, *, policy: str, label: str, max_length: int) -> None:
        """`policy`: the digest of its manifest; `label`: who asks, for people; `max_length`: in tokens.

        Waits until the server has loaded the policy. Raises StageError when it refuses, or gives no sign of life for
        `patience_s`.
        """
        self._settings, self._policy, self._label = settings, policy, label
        self._holder = uuid.uuid4().hex
        self._connection = EndpointConnection(
            settings.url, os.environ.get(ROLLOUT_TOKEN, "").strip() or None, settings.concurrency
        )
        self._progress_at = time.monotonic()
        self._held_at = 0.0
        self._said_at = self._progress_at + _SAY_AFTER_S - _SAY_EVERY_S
        self._holding, self._over = threading.Lock(), threading.Event()
        limit = self._patiently(self._hold)["max_length"]
        if limit < max_length:
            self._release()
            raise StageError(
                f"{label}: rollout server {self._connection.url} takes {limit} tokens, and a prompt with its "
                f"completion may have {max_length}; start it with a larger --max-length"
            )

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """One completion per request, in the order in which they finish; gives the policy back at the end."""
        todo: queue.SimpleQueue[Request] = queue.SimpleQueue()
        done: queue.SimpleQueue[Completion | Exception] = queue.SimpleQueue()
        over = self._over = threading.Event()
        for request in requests:
            todo.put(request)
        # Daemons: a stage that failed does not wait for answers that it no longer wants.
        for _ in range(min(self._settings.concurrency, len(requests))):
            threading.Thread(target=self._drawer, args=(todo, done, sampling, over), daemon=True).start()
        try:
            for _ in requests:
                completion = done.get()
                if isinstance(completion, Exception):
                    raise completion
                yield completion
        finally:
            over.set()
            self._release()

    def score(self, input_ids: list[int], response_ids: list[int]) -> list[float]:
        """[R] log softmax(logits), at temperature 1, of each response token after the prompt."""
        asked = {"prompt": [*input_ids, *response_ids], "max_tokens": 0, "echo": True}
        choice = self._patiently(lambda: self._complete(asked))
        scores = choice["logprobs"]["token_logprobs"][len(input_ids) :]
        return [nan if score is None else float(score) for score in scores]

    def _drawer(
        self,
        todo: "queue.SimpleQueue[Request]",
        done: "queue.SimpleQueue[Completion | Exception]",
        sampling: Sampling,
        over: threading.Event,
    ) -> None:
        """One request at a time until there are none or one has failed."""
        try:
            while not over.is_set():
                done.put(self._draw(todo.get_nowait(), sampling))
        except queue.Empty:
            return
        except Exception as error:
            done.put(error)

    def _draw(self, request: Request, sampling: Sampling) -> Completion:
        asked = {
            "prompt": request.input_ids,
            "seed": request.seed,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
        }
        choice = self._patiently(lambda: self._complete(asked))
        logprobs = [nan if value is None else float(value) for value in choice["logprobs"]["token_logprobs"]]
        return Completion(request.request_id, choice["token_ids"], logprobs, choice["finish_reason"])

    def _complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        body = {"model": self._policy, "user": self._holder, "logprobs": 0, "return_token_ids": True, **asked}
        _, answer = self._connection.post("/v1/completions", body)
        if answer.get("model") != self._policy:
            raise StageError(
                f"{self._label}: rollout server {self._connection.url} answered with policy {answer.get('model')} "
                f"and not {self._policy}; is it another server?"
            )
        self._progress_at = time.monotonic()
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    def _hold(self) -> dict[str, Any]:
        """The server's state, once it has the policy."""
        body = {"policy": self._policy, "holder": self._holder, "label": self._label}
        status, state = self._connection.post("/burnish/policy", body)
        if status == 202:
            raise EndpointUnavailable("it is loading the policy", _LOADING_PAUSE_S)
        return state

    def _release(self) -> None:
        try:
            self._connection.post("/burnish/release", {"holder": self._holder})
        except (EndpointUnavailable, StageError):
            # It lapses by itself.
            return

    def _patiently(self, ask: Callable[[], AnswerT]) -> AnswerT:
        """What `ask` returns, tried until it does; the policy is held anew in between."""
        pause = _FIRST_PAUSE_S
        failed_at = 0.0
        while True:
            try:
                if failed_at:
                    self._hold_since(failed_at)
                return ask()
            except EndpointUnavailable as error:
                failed_at = time.monotonic()
                silent = failed_at - self._progress_at
                if silent > self._settings.patience_s:
                    raise StageError(
                        f"{self._label}: rollout server {self._connection.url}: {error}, without one completion for "
                        f"{silent:.0f} s; see that it runs and draws for no other run, or set rollout.engine"
                    ) from None
                if failed_at - self._said_at > _SAY_EVERY_S:
                    self._said_at = failed_at
                    _logger.warning("rollout server %s: %s; trying again", self._connection.url, error)
                # A little of chance, so that clients of a restarted server do not come back all at once.
                self._over.wait((error.retry_after or pause) * random.uniform(0.75, 1.25))
                if self._over.is_set():
                    raise StageError(f"{self._label}: no longer waiting for the rollout server") from None
                pause = pause if error.retry_after else min(2 * pause, _LONGEST_PAUSE_S)

    def _hold_since(self, moment: float) -> None:
        """Hold the policy anew, unless another thread did after `moment`."""
        with self._holding:
            if self._held_at < moment:
                self._hold()
                self._held_at = time.monotonic()
