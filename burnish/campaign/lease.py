"""One controller a campaign: another is refused while the first shows signs of life, and takes over when it does not.

No clocks are compared: whoever waits looks whether the holder's count of heartbeats goes up while its own clock runs.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from burnish.campaign.log import campaign_prefix
from burnish.contracts.errors import BurnishError, StoreError
from burnish.store import ArtifactStore
from burnish.store.backend import MissingObject

BEAT_S = 10.0
PATIENCE_S = 60.0
"""Seconds without a heartbeat after which the holder counts as gone."""


class Held(BurnishError):
    """Another controller drives this campaign."""


@contextlib.contextmanager
def hold_lease(
    store: ArtifactStore,
    campaign_id: str,
    tell: Callable[[str], None],
    *,
    beat_s: float = BEAT_S,
    patience_s: float = PATIENCE_S,
) -> Iterator[str]:
    """Hold the campaign's lease while the block runs; gives the controller's name. Raises Held."""
    key = f"{campaign_prefix(campaign_id)}lease.json"
    wait_for_holder(store, key, campaign_id, tell, beat_s=beat_s, patience_s=patience_s)
    me = {"holder": uuid.uuid4().hex, **_this_process()}
    store.backend.put_bytes(key, json.dumps({**me, "beat": 0}).encode())
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(store, key, me, beat_s, ended), daemon=True, name="campaign-lease")
    heart.start()
    try:
        yield str(me["holder"])
    finally:
        ended.set()
        heart.join()
        # A store that is away now finds the lease old soon enough.
        with contextlib.suppress(StoreError):
            if (_read(store, key) or {}).get("holder") == me["holder"]:
                store.backend.delete([key])


def wait_for_holder(
    store: ArtifactStore,
    key: str,
    campaign_id: str,
    tell: Callable[[str], None],
    *,
    beat_s: float,
    patience_s: float,
) -> None:
    """Return once nobody holds the lease at `key`. Raises Held as soon as its holder shows a sign of life."""
    first = _read(store, key)
    if first is None or _is_dead(first):
        return
    tell(f"campaign {campaign_id} was driven by {_who(first)}; waiting {patience_s:.0f} s for a sign of life")
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        time.sleep(min(beat_s / 4, patience_s / 4))
        found = _read(store, key)
        if found is None:
            return
        if (found["holder"], found["beat"]) != (first["holder"], first["beat"]):
            raise Held(
                f"campaign {campaign_id} is driven by {_who(found)}; stop that one first, "
                "or watch it with burnish campaign --status"
            )


def _beat(store: ArtifactStore, key: str, me: dict[str, Any], beat_s: float, ended: threading.Event) -> None:
    beat = 0
    while not ended.wait(beat_s):
        beat += 1
        # Whoever took over wrote a state, too, and writing the next one will fail here; nothing to do but be silent.
        with contextlib.suppress(StoreError):
            if (_read(store, key) or {}).get("holder") != me["holder"]:
                return
            store.backend.put_bytes(key, json.dumps({**me, "beat": beat}).encode())


def _read(store: ArtifactStore, key: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(store.backend.get_bytes(key))
        return found
    except MissingObject:
        return None


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "pids": _pids(), "started": _started(pid)}


def _is_dead(holder: dict[str, Any]) -> bool:
    """Known for certain: it was a process that would be seen from here, and is no more. A pid may be used again."""
    return holder["pids"] == _pids() and holder["started"] != _started(holder["pid"])


def _pids() -> str:
    """Which processes are seen from here: this boot's, in this container."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"


def _started(pid: int) -> int | None:
    """When the process started, in ticks since boot (proc_pid_stat(5), field 22); None when there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def _who(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder['host']}"
