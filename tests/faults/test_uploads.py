"""Uploads in parts that break: done when the store has all of it, repeated when not, gone again when nobody goes on."""

import os
import signal

import pytest
from faulty_proxy import Answer, CutConnection
from killer import Killer
from large_upload import KEY, PART, upload
from two_stages import CONTEXT

from burnish.contracts.errors import StoreError
from burnish.store import open_store, s3
from burnish.store.collection import collect, find_garbage

XML = (("Content-Type", "application/xml"),)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(os.urandom(PART + 1000))
    return path


@pytest.fixture
def backend(place, monkeypatch):
    """The store behind the proxy, in this process."""
    monkeypatch.setattr(s3, "_PART", PART)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    return open_store().backend


def completes(request) -> bool:
    return request.method == "POST" and "uploadId=" in request.path


def test_an_upload_whose_last_answer_got_lost_is_done(place, backend, file) -> None:
    """Unlike SeaweedFS, S3 knows no such upload any more when it is asked to complete it again."""
    lost = []

    def lose_the_answer(point, request):
        if completes(request) and point == "executed" and not lost:
            lost.append(request)
            raise CutConnection
        if completes(request) and point == "arrived" and lost:
            return Answer(404, b"<Error><Code>NoSuchUpload</Code></Error>", XML)
        return None

    place.faults.at = lose_the_answer
    backend.put_file(KEY, file)
    assert lost
    assert b"".join(backend.get_range(KEY, 0, file.stat().st_size)) == file.read_bytes()
    assert sum(path.endswith("uploads=") for _, path in place.faults.requests) == 1, "sent once"


def test_an_upload_that_fails_under_status_200_is_repeated(place, backend, file) -> None:
    failed = []

    def fail_politely(point, request):
        if completes(request) and point == "arrived" and not failed:
            failed.append(request)
            return Answer(200, b"<Error><Code>InternalError</Code><Message>try again</Message></Error>", XML)
        return None

    place.faults.at = fail_politely
    backend.put_file(KEY, file)
    assert failed
    assert b"".join(backend.get_range(KEY, 0, file.stat().st_size)) == file.read_bytes()


def test_an_upload_that_never_comes_together_is_one_line(place, backend, file) -> None:
    error = Answer(200, b"<Error><Code>InternalError</Code></Error>", XML)
    place.faults.at = lambda point, request: error if completes(request) else None
    with pytest.raises(StoreError, match=r"key .*: the store did not put the upload's parts together") as caught:
        backend.put_file(KEY, file)
    assert "\n" not in str(caught.value)
    assert backend.size(KEY) is None


def test_the_parts_of_a_killed_upload_are_seen_by_nobody_and_collected(place, file) -> None:
    place.faults.at = killer = Killer("executed", 4)
    process = CONTEXT.Process(target=upload, args=(place.environment, file))
    process.start()
    killer.aim(process.pid)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    store = place.open()
    assert store.backend.size(KEY) is None
    assert list(store.backend.list("")) == []
    [unfinished] = store.backend.unfinished()
    assert unfinished.key.startswith(KEY)

    young = find_garbage(store)
    assert len(young) == 0, "its writer may be alive"
    old = find_garbage(store, grace_s=-60)
    assert old.unfinished == [unfinished]
    assert [line for line in collect(store, old)][-1] == "unfinished writes: 1 deleted"
    assert list(store.backend.unfinished()) == []


def test_a_first_result_that_meets_a_writer_who_never_comes_through_is_written(place, backend) -> None:
    conflict = [Answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>", XML)]

    def meet(point, request):
        return conflict.pop() if request.method == "PUT" and point == "half" and conflict else None

    place.faults.at = meet
    assert backend.put_new("results/key", b"mine")
    assert conflict == []
    assert backend.get_bytes("results/key") == b"mine"
