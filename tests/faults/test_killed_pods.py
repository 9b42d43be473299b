"""A pod that is killed at any moment: nothing half-written is ever seen, and the next attempt ends where it would have.

Each test kills at every request that the proxy sees, at three points of it.
"""

import signal

import pytest
from killer import Killer
from two_stages import start

from burnish.store import ArtifactStore
from burnish.store.verify import inspect


def faults_of(store: ArtifactStore) -> list[str]:
    """What anyone may find at this moment and could not use."""
    return [f"{check.key}: {check.fault}" for check in inspect(store).run() if check.fault]


@pytest.mark.parametrize("at", ["arrived", "half", "executed"])
def test_a_run_killed_at_any_request_goes_on_to_the_undisturbed_end(place, tmp_path, at) -> None:
    place.faults.at = counter = Killer(at)
    undisturbed = start(place.environment, tmp_path / "whole", "run")
    assert undisturbed.wait() == 0, undisturbed.log
    for number in range(1, counter.seen + 1):
        folder = tmp_path / str(number)
        environment = place.environment | {
            "BURNISH_STORE": f"{place.environment['BURNISH_STORE']}/{number}",
            "BURNISH_CACHE": str(folder / "cache"),
        }
        place.faults.at = killer = Killer(at, number)
        process = start(environment, folder, "run")
        killer.aim(process.pid)
        assert process.wait() == -signal.SIGKILL, process.log
        place.faults.at = lambda point, request: None
        store = place.open(environment["BURNISH_STORE"])
        assert faults_of(store) == []
        again = start(environment, folder, "run")
        assert again.wait() == 0, again.log
        assert again.outputs() == undisturbed.outputs()
        assert faults_of(store) == []
        assert [record.error for record in store.run_records("run")] == [None, None]
