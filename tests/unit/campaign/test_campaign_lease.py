"""Two controllers of one campaign: refused while the first lives, taken over when it does not; clocks do not matter."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from burnish.campaign.lease import Held, hold_lease
from burnish.campaign.log import CampaignLog, TakenOver, campaign_ids

KEY = "campaigns/one/lease.json"
QUICK = {"beat_s": 0.1, "patience_s": 1.0}


@contextlib.contextmanager
def held(store, said=None, **times):
    with hold_lease(store, "one", (said if said is not None else []).append, **(QUICK | times)) as name:
        yield name


def as_if_elsewhere(store, **changes):
    """Make the lease look as if a process of another machine had it."""
    lease = json.loads(store.backend.get_bytes(KEY))
    store.backend.put_bytes(KEY, json.dumps(lease | {"pids": "another boot", **changes}).encode())


def test_a_second_controller_is_refused_at_the_first_heartbeat(store):
    said = []
    with held(store):
        began = time.monotonic()
        with pytest.raises(Held, match="campaign one is driven by process"), held(store, said, patience_s=30.0):
            pass
        assert time.monotonic() - began < 10
    assert said[0].startswith("campaign one was driven by process")
    with held(store, said):
        assert len(said) == 1, "what was given back is free at once"
    assert not list(store.backend.list("campaigns/"))


def test_a_controller_that_was_killed_on_this_machine_is_followed_at_once(store, tmp_path):
    code = (
        "import sys, time\n"
        "from burnish.campaign.lease import hold_lease\n"
        "from burnish.store import open_store\n"
        "with hold_lease(open_store(), 'one', print):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    environment = {**os.environ, "BURNISH_STORE": store.backend.url, "BURNISH_CACHE": str(tmp_path / "cache")}
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(Held), held(store, beat_s=10.0, patience_s=40.0):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    began = time.monotonic()
    with held(store, patience_s=60.0):
        assert time.monotonic() - began < 5


def test_a_silent_holder_elsewhere_is_followed_after_a_while_whatever_its_clock_says(store):
    with held(store):
        pass
    store.backend.put_bytes(KEY, json.dumps({"holder": "x", "beat": 7, "host": "pod-1", "pid": 1}).encode())
    as_if_elsewhere(store, started=1)
    said = []
    began = time.monotonic()
    with held(store, said) as name:
        assert time.monotonic() - began >= QUICK["patience_s"]
        assert json.loads(store.backend.get_bytes(KEY))["holder"] == name
    assert said == ["campaign one was driven by process 1 on pod-1; waiting 1 s for a sign of life"]


def test_a_holder_that_was_followed_stops_its_heart_and_leaves_the_others_lease_alone(store):
    with held(store):
        other = {"holder": "other", "beat": 0, "host": "pod-2", "pid": 1, "pids": "elsewhere", "started": 1}
        store.backend.put_bytes(KEY, json.dumps(other).encode())
        time.sleep(0.5)
        assert json.loads(store.backend.get_bytes(KEY)) == other
    assert json.loads(store.backend.get_bytes(KEY)) == other


def test_of_many_writers_of_the_next_state_one_succeeds(store):
    logs = [CampaignLog(store, "one", f"controller {number}") for number in range(8)]
    start = logs[0].latest()
    outcomes = {}

    def write(log):
        try:
            outcomes[log.controller] = log.write(start, reason="mine")
        except TakenOver:
            outcomes[log.controller] = None

    writers = [threading.Thread(target=write, args=(log,)) for log in logs]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    (winner,) = [name for name, written in outcomes.items() if written]
    assert logs[0].latest().controller == winner


def test_old_states_go_and_none_of_their_numbers_is_free_for_a_straggler(store):
    straggler, log = CampaignLog(store, "one", "straggler"), CampaignLog(store, "one", "me")
    stale = current = straggler.write(straggler.latest())
    for _ in range(12):
        current = log.write(current)
    assert len(list(store.backend.list("campaigns/one/states/"))) <= 5
    with pytest.raises(TakenOver):
        straggler.write(stale)
    assert log.latest() == current, "what the straggler left is older than the newest state"
    assert log.write(current).revision == current.revision + 1
    assert campaign_ids(store) == ["one"]
