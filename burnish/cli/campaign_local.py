"""Chunks as runs on this machine; a chunk that was cut off goes on behind its last finished stage."""

import argparse

from burnish.campaign.plan import chunk_overrides
from burnish.cli.home import Home
from burnish.cli.local_run import run_locally
from burnish.contracts.campaign import Chunk
from burnish.contracts.config import RunConfig
from burnish.contracts.loading import with_overrides


class LocalLauncher:
    """Runs chunks in this process's care: they end when it does."""

    def __init__(self, given: argparse.Namespace, config: RunConfig, home: Home, environment: dict[str, str]) -> None:
        """environment: what stages need to find store and MLflow."""
        self._given, self._config, self._home, self._environment = given, config, home, environment

    def start(self, chunk: Chunk) -> str:
        return str(self._home.run_dir(chunk.run_id) / "report.html")

    def wait(self, chunk: Chunk) -> str | None:
        config = with_overrides(self._config, chunk_overrides(chunk, self._config))
        end = run_locally(self._given, config, chunk.run_id, self._home, self._environment, stage_lines=False)
        return end.failure(self._home.run_dir(chunk.run_id) / "run.log")
