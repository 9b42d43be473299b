"""Two pods of the same stage at once, as when a retry begins while the first is only cut off: one result for all."""

import threading

import pytest
from faulty_proxy import Answer, faulty_proxy
from two_stages import SALT, start

from burnish.store.verify import inspect


@pytest.fixture
def slow_pod(seaweed, place):
    """The environment of a pod that the test holds up, the way to hold it, and what lets it go on."""
    with faulty_proxy(seaweed["BURNISH_S3_ENDPOINT"]) as (endpoint, faults):
        held, go_on = threading.Event(), threading.Event()

        def hold_at(method: str, part: str) -> None:
            def hook(point, request):
                if point == "arrived" and request.method == method and part in request.path:
                    held.set()
                    assert go_on.wait(60)
                return None

            faults.at = hook

        yield place.environment | {"BURNISH_S3_ENDPOINT": endpoint}, hold_at, held, go_on
        go_on.set()


@pytest.mark.parametrize(
    ("method", "part"),
    [("PUT", "/blobs/"), ("PUT", "/manifests/"), ("PUT", "/results/"), ("PUT", "/runs/")],
)
@pytest.mark.parametrize("other_bytes", [False, True])
def test_of_two_pods_of_a_stage_the_first_result_is_that_of_both(
    place, slow_pod, tmp_path, method, part, other_bytes
) -> None:
    environment, hold_at, held, go_on = slow_pod
    # A stage on a GPU may give other bytes each time.
    salt = {SALT: "second"} if other_bytes else {}
    hold_at(method, part)
    slow = start(environment, tmp_path / "slow", "run", stages=("make",))
    assert held.wait(30), slow.log
    fast = start(place.environment | salt, tmp_path / "fast", "run")
    assert fast.wait() == 0, fast.log
    go_on.set()
    assert slow.wait() == 0, slow.log

    store = place.open()
    if part == "/runs/":
        # It had its result remembered before it was held up, so the other one found it.
        assert "result is known" in fast.log
    assert slow.outputs()["rollouts"] == fast.outputs()["rollouts"]
    records = {record.stage: record for record in store.run_records("run")}
    assert records["make"].outputs["rollouts"] == fast.outputs()["rollouts"]
    assert store.get_manifest(records["double"].outputs["rewards"]).lineage.inputs == {
        "rollouts": records["make"].outputs["rollouts"]
    }
    assert [check.fault for check in inspect(store).run() if check.fault] == []


def test_a_pod_that_fails_late_does_not_hide_the_success_of_its_retry(seaweed, place, tmp_path) -> None:
    held, go_on = threading.Event(), threading.Event()
    denied = Answer(403, b"<Error><Code>AccessDenied</Code></Error>", (("Content-Type", "application/xml"),))

    def hold_and_refuse(point, request):
        if request.method == "PUT" and "/manifests/" in request.path:
            held.set()
            assert go_on.wait(60)
            return denied
        return None

    with faulty_proxy(seaweed["BURNISH_S3_ENDPOINT"]) as (endpoint, faults):
        faults.at = hold_and_refuse
        late = start(place.environment | {"BURNISH_S3_ENDPOINT": endpoint}, tmp_path / "late", "run", stages=("make",))
        assert held.wait(30), late.log
        retry = start(place.environment, tmp_path / "retry", "run")
        assert retry.wait() == 0, retry.log
        go_on.set()
        assert late.wait() == 4
    [line] = late.errors
    assert "access denied" in line
    assert [record.error for record in place.open().run_records("run")] == [None, None]


def test_two_pods_at_the_very_same_moment_agree(place, tmp_path) -> None:
    pods = [
        start(place.environment | {SALT: str(number)}, tmp_path / str(number), "run", stages=("make",))
        for number in range(4)
    ]
    assert [pod.wait() for pod in pods] == [0] * 4
    assert len({pod.outputs()["rollouts"] for pod in pods}) == 1
    [record] = place.open().run_records("run")
    assert record.outputs == pods[0].outputs()
