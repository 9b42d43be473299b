"""Chunks as runs of Kubeflow Pipelines: each chunk of equal length is the same pipeline version with other parameters.

A run is named by the chunk and the attempt at it, so whether it was submitted is a question that KFP can answer.
"""

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from burnish.campaign.plan import chunk_overrides
from burnish.cli.compile import compile_for_cluster
from burnish.cli.kfp_client import connect, explained
from burnish.cli.kfp_progress import Progress, progress_of
from burnish.cli.submit import named, upload, version_of
from burnish.cli.watch import ENDS, failures_of, patiently, tasks_of_run
from burnish.contracts.campaign import Chunk
from burnish.contracts.config import RunConfig
from burnish.contracts.loading import with_overrides

# Nobody watches a campaign: an API that is away over lunch must not end it.
_PATIENCE_S = 3 * 3600.0


class KfpLauncher:
    """Submits chunks to the API at `given.host` and waits for them."""

    def __init__(
        self, given: argparse.Namespace, config: RunConfig, tell: Callable[[str], None], *, poll_s: float = 15.0
    ) -> None:
        """given: arguments of `submit` about KFP and the cluster. Raises BurnishError when KFP cannot be used."""
        self._given, self._config, self._tell, self._poll_s = given, config, tell, poll_s
        self._runs: dict[str, str] = {}
        with explained(given.host):
            self._client = connect(given.host, given.namespace, given.token_file)
            with _quiet():
                experiment = self._client.create_experiment(given.experiment, namespace=given.namespace)
            self._experiment = experiment.experiment_id

    def start(self, chunk: Chunk) -> str:
        name = run_name(chunk)
        with explained(self._given.host):
            run = self._find(name) or self._submit(chunk, name)
        self._runs[name] = run.run_id
        return f"{self._given.host}/#/runs/details/{run.run_id}"

    def wait(self, chunk: Chunk) -> str | None:
        run_id = self._runs[run_name(chunk)]
        console = Console(highlight=False)
        status = Status("", console=console) if console.is_terminal else None
        with status or contextlib.nullcontext():
            run = patiently(self._client, self._given.host, run_id, self._tell, _PATIENCE_S)
            with explained(self._given.host):
                tasks = tasks_of_run(self._client, run)
            while True:
                details = (run.run_details and run.run_details.task_details) or []
                progress = progress_of(tasks, details)
                if status:
                    status.update(escape(f"chunk {chunk.number}: {_busy(progress)}"))
                if run.state in ENDS:
                    break
                time.sleep(self._poll_s)
                run = patiently(self._client, self._given.host, run_id, self._tell, _PATIENCE_S)
        failures = failures_of(self._client, run_id, details, progress)
        if failures:
            return "; ".join(f"{title}: {why}" for title, why in failures.items())
        if run.state == "SUCCEEDED":
            return None
        return (run.error and run.error.message) or f"KFP says {run.state.lower()}"

    def _find(self, name: str) -> Any:
        """The run of this name; the oldest, should there be several."""
        found = self._client.list_runs(experiment_id=self._experiment, filter=named(name), sort_by="created_at").runs
        return next((run for run in found or [] if run.display_name == name), None)

    def _submit(self, chunk: Chunk, name: str) -> Any:
        # What is compiled in is the number of rounds; where they start is a parameter.
        shape = with_overrides(self._config, [f"rounds={chunk.rounds}"])
        with tempfile.TemporaryDirectory(prefix="burnish-campaign-") as folder, _quiet():
            path = Path(folder) / f"burnish-{shape.name}.yaml"
            compile_for_cluster(self._given, shape, path)
            request = {
                "pipeline": path.stem,
                "version": version_of(shape.name, path),
                "namespace": self._given.namespace,
            }
            version, _ = upload(self._client, request, path)
            return self._client.run_pipeline(
                self._experiment,
                name,
                params={"run_id": chunk.run_id, "overrides": " ".join(chunk_overrides(chunk, self._config))},
                pipeline_id=version.pipeline_id,
                version_id=version.pipeline_version_id,
                enable_caching=False,
            )


def run_name(chunk: Chunk) -> str:
    """KFP's name of the run; the records in the store have the chunk's run id in all attempts."""
    return chunk.run_id if chunk.attempt == 1 else f"{chunk.run_id}-attempt-{chunk.attempt}"


def _busy(progress: list[Progress]) -> str:
    busy = [one.task.title for one in progress if one.state in ("starting", "running")]
    done = sum(one.state == "done" for one in progress)
    return "; ".join(filter(None, (f"{done} of {len(progress)} tasks done", ", ".join(busy[:3]))))


@contextlib.contextmanager
def _quiet() -> Any:
    """The client prints addresses as it goes; the campaign says what there is to say."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
