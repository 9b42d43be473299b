"""Runs `burnish run` as people do, in a home of its own; for the tests beside it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from burnish.contracts.artifacts import Manifest, StageRecord
from burnish.store import open_store


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BURNISH_", "MLFLOW_", "AWS_"))}
    return kept | {
        "BURNISH_HOME": str(home),
        "BURNISH_CACHE": str(home / "cache"),
        "BURNISH_PROGRESS_SECONDS": "1",
        "OMP_NUM_THREADS": "1",
    }


def start(home: Path, config: dict, *arguments: str) -> subprocess.Popen[str]:
    """Start a run of `config` in `home`; its output is readable line by line."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(yaml.safe_dump(config))
    return subprocess.Popen(
        [sys.executable, "-m", "burnish.cli.main", "run", str(home / "config.yaml"), "--home", str(home), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(home),
    )


def kill_when(process: subprocess.Popen[str], seen: Callable[[], bool]) -> None:
    """Kill it without mercy as soon as `seen` holds."""
    try:
        while process.poll() is None:
            if seen():
                process.send_signal(signal.SIGKILL)
                process.wait()
                return
            time.sleep(0.01)
    finally:
        process.kill()
        process.communicate()
    raise AssertionError("it ended before what was waited for")


def finish(home: Path, config: dict, *arguments: str) -> tuple[int, str]:
    """Run `config` to its end; returns exit status and output."""
    process = start(home, config, *arguments)
    output, _ = process.communicate(timeout=540)
    return process.returncode, output


def records(home: Path, monkeypatch) -> list[StageRecord]:
    """What the latest run of `home` left in its object store, read through the embedded server."""
    from burnish.store.seaweed import start_seaweed

    monkeypatch.setenv("BURNISH_CACHE", str(home / "cache"))
    with start_seaweed(home) as settings:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        return open_store().run_records((home / "runs" / "latest").resolve().name)


def policy_blobs(home: Path, found: list[StageRecord], monkeypatch) -> dict[str, str]:
    """sha256 of every file of the run's final policy."""
    from burnish.store.seaweed import start_seaweed

    last = max((record for record in found if record.stage == "update"), key=lambda record: record.round or 0)
    with start_seaweed(home) as settings:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        manifest: Manifest = open_store().get_manifest(last.outputs["updated_policy"])
    return {blob.path: blob.sha256 for blob in manifest.blobs}
