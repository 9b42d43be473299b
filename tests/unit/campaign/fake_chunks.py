"""A launcher whose runs take no time: it writes what the stages of a chunk would leave in the store.

`Runs` stands for the cluster, which outlives a controller: it keeps every run that was ever submitted, by name.
"""

from pathlib import Path

from burnish.contracts.artifacts import Lineage, StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.verdict import VERDICT_FILE, Verdict

ROUND_SECONDS = 10.0


class Runs:
    """Submitted runs and what becomes of them."""

    def __init__(self, store, scratch: Path, *, collapse_in=(), fail=(), unbudgeted=()):
        """collapse_in: rounds in which the detector stops a chunk; fail: names of runs that fail; unbudgeted: rounds
        that the budget does not bear."""
        self.store, self.scratch = store, scratch
        self.collapse_in, self.fail, self.unbudgeted = set(collapse_in), set(fail), set(unbudgeted)
        self.submitted: list[str] = []
        self.finished: set[str] = set()

    def submit(self, name):
        self.submitted.append(name)

    def finish(self, name, chunk):
        """Let the run of `chunk` end; returns its error."""
        self.finished.add(name)
        if name in self.fail:
            return "out of memory"
        self._write(chunk)
        return None

    def _write(self, chunk):
        def record(stage, round=None, label="", **fields):
            moment = 1000.0 * chunk.number + (ROUND_SECONDS * (round or 0))
            self.store.put_run_record(
                StageRecord(
                    run_id=chunk.run_id, stage=stage, round=round, label=label, key="0" * 64,
                    started_at=moment, finished_at=moment + ROUND_SECONDS, **fields,
                )
            )  # fmt: skip

        start = chunk.start
        state = {
            name: getattr(start, name) or self._put(name, "start")
            for name in ("policy", "trainer_state", "critic", "verdict")
        }
        record("sft", outputs=dict(state))
        record("evaluate", label="before", outputs={"evaluation": start.evaluation or self._put("evaluation", "0")})
        over = False
        for round in range(start.round + 1, chunk.last_round + 1):
            broke = round in self.unbudgeted
            record("rollout", round, skipped=over or broke, stop_reason="budget" if broke and not over else "")
            over = over or broke
            if not over:
                collapsed = round in self.collapse_in
                if not collapsed:
                    state |= {name: self._put(name, f"round {round}") for name in ("policy", "trainer_state", "critic")}
                status = "stop" if collapsed else "ok"
                reasons = [f"kl of round {round}"] if collapsed else []
                state["verdict"] = self._verdict(Verdict(status=status, round=round, reasons=reasons))
                record("reward", round, metrics={"reward/mean": round / 10})
            outputs = {f"updated_{name}": digest for name, digest in state.items()}
            record("update", round, outputs=outputs, skipped=over)
            over = over or (not broke and round in self.collapse_in)
        metrics = {"pass@1": chunk.last_round / 100} if chunk.evaluated else {}
        label = f"after {chunk.last_round}"
        record("evaluate", label="after", outputs={"evaluation": self._put("evaluation", label)}, metrics=metrics)

    def _put(self, kind, text):
        folder = self.scratch / f"{kind}-{text.replace(' ', '-')}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "text").write_text(text)
        return self._publish(kind, folder, {})

    def _verdict(self, verdict):
        folder = self.scratch / f"verdict-{verdict.round}-{verdict.status}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / VERDICT_FILE).write_text(verdict.model_dump_json())
        return self._publish("verdict", folder, verdict.metadata)

    def _publish(self, kind, folder, metadata):
        lineage = Lineage(stage="fake")
        return self.store.put_artifact(kind, folder, lineage=lineage, counts={}, metadata=metadata).digest


class FakeLauncher:
    """Submits to `runs`; `interrupt(moment)` may raise, as a kill would."""

    def __init__(self, runs: Runs, interrupt=lambda moment: None):
        self.runs, self.interrupt = runs, interrupt

    def start(self, chunk):
        name = run_name(chunk)
        self.interrupt("before submitting")
        if name not in self.runs.submitted:
            self.runs.submit(name)
        self.interrupt("after submitting")
        return f"http://kfp/{name}"

    def wait(self, chunk):
        self.interrupt("before the run ends")
        error = self.runs.finish(run_name(chunk), chunk)
        self.interrupt("after the run ended")
        return error


def run_name(chunk):
    return f"{chunk.run_id}/{chunk.attempt}"


def config(**changes) -> RunConfig:
    """Six rounds in chunks of two."""
    campaign = {"rounds": 6, **changes.pop("campaign", {})}
    return RunConfig.model_validate({"name": "fake", "rounds": 2, "campaign": campaign, **changes})
