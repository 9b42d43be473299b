"""A stage whose object store fails it: what passes is waited for, the rest is one line, and no bytes are trusted."""

import threading
import time

import pytest
from faulty_proxy import Answer, CutConnection, faulty_proxy
from two_stages import PATIENCE, start

from burnish.store import open_store, s3


@pytest.fixture
def undisturbed(place, tmp_path):
    """Digests of what the two stages write when nothing happens."""
    process = start(place.environment | {"BURNISH_CACHE": str(tmp_path / "c")}, tmp_path / "undisturbed", "run")
    assert process.wait() == 0, process.log
    place.environment["BURNISH_STORE"] += "/disturbed"
    place.faults.requests.clear()
    return process.outputs()


def error_of(process) -> str:
    """The one line that a failed stage says."""
    assert "Traceback" not in process.log
    [line] = process.errors
    return line


def slow_down(point, request):
    body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    return Answer(503, body, (("Content-Type", "application/xml"),)) if request.number % 3 == 0 else None


def internal_error(point, request):
    return Answer(500) if request.number % 3 == 0 else None


def too_many_requests(point, request):
    return Answer(429, b"", (("Retry-After", "0"),)) if request.number % 3 == 0 else None


def cut_before(point, request):
    if point == "half" and request.number % 2:
        raise CutConnection


def cut_after(point, request):
    if point == "executed" and request.number % 3 == 0:
        raise CutConnection


@pytest.mark.parametrize("fault", [slow_down, internal_error, too_many_requests, cut_before, cut_after])
def test_what_passes_is_repeated_and_changes_nothing(place, undisturbed, tmp_path, fault) -> None:
    place.faults.at = fault
    process = start(place.environment, tmp_path / "run", "run")
    assert process.wait() == 0, process.log
    assert process.outputs() == undisturbed


def test_broken_bodies_are_read_again(place, undisturbed, made, tmp_path) -> None:
    place.faults.truncate = [100, 20_000]
    process = start(place.environment, tmp_path / "run", "run", stages=("double",))
    assert process.wait() == 0, process.log
    assert place.faults.truncate == []
    assert process.outputs() == undisturbed


def test_an_outage_in_the_middle_of_a_stage_is_waited_for_and_said(seaweed, place, undisturbed, tmp_path) -> None:
    with faulty_proxy(seaweed["BURNISH_S3_ENDPOINT"]) as (endpoint, faults):
        over = threading.Event()

        def gone(point, request):
            if request.number > 3 and not over.is_set():
                raise CutConnection

        faults.at = gone
        process = start(place.environment | {"BURNISH_S3_ENDPOINT": endpoint}, tmp_path / "run", "run")
        time.sleep(4)
        over.set()
        assert process.wait() == 0, process.log
    assert process.outputs() == undisturbed
    assert "no answer" in process.log
    assert "asking again" in process.log


def test_a_store_that_is_away_at_the_start_is_one_line_and_the_next_attempt_goes_on(place, undisturbed, tmp_path):
    away = place.environment | {"BURNISH_S3_ENDPOINT": "http://127.0.0.1:9"}
    process = start(away, tmp_path / "run", "run")
    assert process.wait() == 4
    assert "no connection" in error_of(process)
    assert "check BURNISH_S3_ENDPOINT" in error_of(process)
    again = start(place.environment, tmp_path / "run", "run")
    assert again.wait() == 0, again.log
    assert again.outputs() == undisturbed


def flip_a_bit(times: int):
    """A hook that changes the bytes of the first `times` blobs that are read."""
    left = [None] * times

    def hook(point, request):
        if point == "executed" and request.method == "GET" and "/blobs/" in request.path and left:
            left.pop()
            body = request.answer.body
            return Answer(request.answer.status, bytes([body[0] ^ 1]) + body[1:], request.answer.headers)
        return None

    return hook


@pytest.fixture
def made(place, tmp_path):
    """The first stage is done; the second runs on a node whose cache is empty."""
    process = start(place.environment, tmp_path / "run", "run", stages=("make",))
    assert process.wait() == 0, process.log
    place.environment["BURNISH_CACHE"] = str(tmp_path / "another node")


def test_wrong_bytes_on_the_way_are_fetched_again(place, undisturbed, made, tmp_path) -> None:
    place.faults.at = flip_a_bit(1)
    process = start(place.environment, tmp_path / "run", "run", stages=("double",))
    assert process.wait() == 0, process.log
    assert process.outputs() == undisturbed


def test_wrong_bytes_in_the_store_are_never_used_and_named_with_the_way_out(place, made, tmp_path) -> None:
    place.faults.at = flip_a_bit(1000)
    process = start(place.environment, tmp_path / "run", "run", stages=("double",))
    assert process.wait() == 4
    line = error_of(process)
    assert "rollouts artifact" in line
    assert "is corrupt" in line
    assert "`burnish store verify --delete` takes it away, then run stage 'make' again" in line
    assert set(process.outputs()) == {"rollouts"}


def test_a_blob_that_is_gone_is_named_with_its_artifact_and_the_stage_to_run(place, made, tmp_path) -> None:
    store = place.open()
    manifests = [found.key for found in store.backend.list("manifests/")]
    blobs = [found.key for found in store.backend.list("blobs/")]
    store.backend.delete(blobs)
    process = start(place.environment, tmp_path / "run", "run", stages=("double",))
    assert process.wait() == 4
    line = error_of(process)
    assert any(blob in line for blob in blobs)
    assert any(manifest.removeprefix("manifests/").removesuffix(".json") in line for manifest in manifests)
    assert "run stage 'make' again" in line
    assert [record.error for record in store.run_records("run") if record.stage == "double"] == [
        line.removeprefix("error: ")
    ]


def test_a_refusal_is_said_at_once(place, tmp_path) -> None:
    def refuse(point, request):
        body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        denied = request.method == "PUT" and "/blobs/" in request.path
        return Answer(403, body, (("Content-Type", "application/xml"),)) if denied else None

    place.faults.at = refuse
    began = time.monotonic()
    process = start(place.environment, tmp_path / "run", "run")
    assert process.wait() == 4
    assert time.monotonic() - began < 10
    assert "access denied" in error_of(process)
    assert "AWS_ACCESS_KEY_ID" in error_of(process)
    assert place.environment["AWS_SECRET_ACCESS_KEY"] not in process.log
    refused = [path for method, path in place.faults.requests if method == "PUT" and "/blobs/" in path]
    assert len(refused) <= 2, "one for each file, none repeated"


def test_a_stage_that_fails_for_another_reason_says_that_one_although_the_store_is_away_too(
    place, made, tmp_path
) -> None:
    store = place.open()
    store.backend.delete([found.key for found in store.backend.list("blobs/")])

    def away(point, request):
        if request.method == "PUT":
            raise CutConnection

    place.faults.at = away
    process = start(place.environment | {PATIENCE: "2"}, tmp_path / "run", "run", stages=("double",))
    assert process.wait() == 4
    assert "is missing from" in error_of(process)
    assert "its record could not be written" in process.log


def test_a_body_that_trickles_is_asked_for_anew_where_it_stopped(place, made, monkeypatch) -> None:
    monkeypatch.setattr(s3, "_SLOW_S", 0.5)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store()
    [blob] = [found for found in store.backend.list("blobs/") if found.size == 40_000]
    place.faults.bytes_a_second = 20_000
    place.faults.requests.clear()
    data = b"".join(store.backend.get_range(blob.key, 0, blob.size))
    assert data == b"".join(place.open().backend.get_range(blob.key, 0, blob.size))
    assert len(place.faults.requests) > 1
