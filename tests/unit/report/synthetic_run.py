"""A made-up but plausible run in a folder store: records, rollouts, rewards, evaluations, as the stages leave them.

`python tests/unit/report/synthetic_run.py OUT` writes its report to OUT, to look at.
"""

import json
import math
import os
import random
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from burnish.contracts.artifacts import Kind, Lineage, StageRecord
from burnish.contracts.config import RunConfig
from burnish.contracts.evaluation import Evaluation, PromptOutcome, Score
from burnish.contracts.loading import dump_config, parse_config
from burnish.contracts.parquet import write_records
from burnish.contracts.records import Execution, Logprob, Record, Reward, Rollout
from burnish.maths.passk import bootstrap_interval, pass_at_k
from burnish.store import ArtifactStore, open_store

RUN_ID = "arithmetic-0a1b2c3d"
HOSTILE = "<script>alert('owned')</script></script><img src=x onerror=alert(1)> ünï 漢字 🙂"


def open_folder_store(folder: Path) -> ArtifactStore:
    os.environ["BURNISH_CACHE"] = str(folder / "cache")
    return open_store(str(folder / "store"))


def synthetic_config(rounds: int = 8) -> RunConfig:
    return parse_config(
        {
            "name": "arithmetic",
            "rounds": rounds,
            "tasks": [{"source": "sums", "name": "two-digit sums"}, {"source": "code"}],
            "rollout": {"prompts_per_round": 16, "samples_per_prompt": 8},
            "update": {"steps": 2, "learning_rate": 1e-5},
            "evaluate": {"samples": 8, "k": [1, 8], "max_prompts": 32},
        }
    )


class WordTokenizer:
    """Words and punctuation in GPT-2's byte alphabet, ids in order of first use."""

    def __init__(self) -> None:
        self.vocabulary: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        pieces = [*re.findall(r" ?\w+|\s|[^\w\s]", text), "<|im_end|>"]
        return [self.vocabulary.setdefault(piece, len(self.vocabulary)) for piece in pieces]

    def save(self, path: Path) -> None:
        def alphabet(piece: str) -> str:
            printable = {*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
            others = [byte for byte in range(256) if byte not in printable]
            return "".join(chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in piece.encode())

        special = self.vocabulary["<|im_end|>"]
        vocabulary = {alphabet(piece): index for piece, index in self.vocabulary.items() if index != special}
        tree = {
            "added_tokens": [{"id": special, "content": "<|im_end|>"}],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]},
            "model": {"type": "BPE", "vocab": vocabulary},
        }
        path.write_text(json.dumps(tree), "utf-8")


@dataclass
class SyntheticRun:
    """Writes a run; `fail_at` names the stage title that fails, `stop_at` the round whose verdict ends it."""

    store: ArtifactStore
    config: RunConfig = field(default_factory=synthetic_config)
    run_id: str = RUN_ID
    fail_at: str | None = None
    stop_at: int | None = None
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    clock: float = 1_790_000_000.0
    tokenizer: WordTokenizer = field(default_factory=WordTokenizer)

    def write(self) -> list[StageRecord]:
        """Write records and artifacts in the order of the DAG, up to a failure; returns the records."""
        try:
            self.tokenizer.encode(
                HOSTILE + " ".join(f"{n} add{n}\n{n}\nadd{n}" for n in range(201)) + "I think plus makes the sum of is"
            )
            self.tokenizer.encode("The sum. def not sure lambda y return x")
            resolved = {"config.yaml": lambda path: path.write_text(dump_config(self.config))}
            self._stage("validate", {"resolved": ("config", resolved)}, 0.4)
            evaluations = {label: self._evaluation(label) for label in ("before", "after")}
            policy = {
                "policy": ("policy", {"tokenizer.json": self.tokenizer.save, "model.safetensors": _bytes(400_000)})
            }
            series = [
                {
                    "step": float(i),
                    "loss": 2.2 * math.exp(-i / 6) + 0.4,
                    "lr": 1e-5,
                    "val_loss": 0.9 if i == 19 else None,
                }
                for i in range(20)
            ]
            self._stage("sft", policy | {"critic": ("critic", {})}, 48.0, {"val_loss": 0.61}, series)
            self._evaluate("before", evaluations["before"])
            for round in range(1, self.config.rounds + 1):
                self._round(round)
            self._evaluate("after", evaluations["after"])
        except _Failed:
            pass
        return self.store.run_records(self.run_id)

    def _round(self, round: int) -> None:
        if self.stop_at is not None and round > self.stop_at:
            for stage in ("rollout", "execute", "reward", "logprob", "update"):
                record = StageRecord(run_id=self.run_id, stage=stage, round=round, key="0" * 64, skipped=True)
                self.store.put_run_record(
                    record.model_copy(update={"started_at": self.clock, "finished_at": self.clock})
                )
            return
        rollouts = [self._rollout(round, use, index) for use in range(16) for index in range(8)]
        lengths = [len(row.response_ids) for row in rollouts]
        metrics = {"response_length_mean": sum(lengths) / len(lengths), "tokens_per_second": 160 + 9 * math.sin(round)}
        self._stage("rollout", {"rollouts": ("rollouts", _rows("rollouts", rollouts))}, 42.0, metrics, round=round)
        executions = [
            Execution(
                row.sample_id,
                ["passed", "passed" if row.text.startswith("def") else "wrong"],
                stderr_head="NameError: x",
            )
            for row in rollouts
            if row.task == "code"
        ]
        self._stage("execute", {"executions": ("executions", _rows("executions", executions))}, 3.0, {}, round=round)
        rewards = [self._reward(row, round) for row in rollouts]
        values = [row.reward for row in rewards if row.reward is not None]
        metrics = {"reward/mean": sum(values) / len(values), "unscored": float(len(rewards) - len(values))}
        self._stage("reward", {"rewards": ("rewards", _rows("rewards", rewards))}, 1.2, metrics, round=round)
        logprobs = [self._logprob(row) for row in rollouts]
        # One round could not measure its KL: a gap, not a 0.
        kl = None if round == 4 else 0.002 * round**1.5
        metrics = {
            "entropy": 0.9 - 0.06 * round,
            "kl_ref": kl,
            "ess": 0.998 - 0.001 * round,
            "mismatch_k3": 1e-5 * round,
            "mismatch_chi2": 2e-5 * round,
        }
        outputs = {"logprobs": ("logprobs", _rows("logprobs", logprobs))}
        worst = {"logprobs": {"worst_tokens": _worst_tokens(rollouts, logprobs)}}
        self._stage("logprob", outputs, 19.0, metrics, round=round, metadata=worst)
        steps = [
            {
                "step": float(2 * (round - 1) + i),
                "loss": 0.02 * self.chance.gauss(0, 1),
                "kl": 0.002 * round**1.5,
                "grad_norm": 0.6 + 0.1 * self.chance.random(),
                "lr": 1e-5,
                "clip_fraction": 0.004 * i * self.chance.random(),
                # Measured once a round.
                "negative_gradient_share": 0.4 + 0.02 * round if i == 0 else None,
            }
            for i in range(2)
        ]
        outputs = {
            "updated_policy": ("policy", {"model.safetensors": _bytes(400_000 + round)}),
            "updated_trainer_state": ("trainer_state", {"optimizer.safetensors": _bytes(800_000 + round)}),
        }
        outputs |= {"updated_critic": ("critic", {}), "updated_verdict": ("verdict", {"verdict.json": _bytes(200)})}
        verdict = self._verdict(round)
        metrics = {
            "grad_norm": steps[-1]["grad_norm"],
            "clip_fraction": 0.002,
            "negative_gradient_share": steps[0]["negative_gradient_share"],
        }
        self._stage("update", outputs, 60.0, metrics, steps, round, metadata={"updated_verdict": verdict})

    def _verdict(self, round: int) -> dict:
        if round == self.stop_at:
            reason = "kl 1.74 is above 0.5 (10 x its baseline) in 3 of 5 steps: raise update.kl.coef"
            return {"status": "stop", "round": round, "reasons": [reason], "stopped": True}
        return {"status": "ok", "round": round, "reasons": []}

    def _rollout(self, round: int, use: int, index: int) -> Rollout:
        task = "code" if use % 3 == 2 else "two-digit sums"
        a, b = 10 + (use * 7 + round) % 90, 10 + (use * 13) % 90
        good = self.chance.random() < 0.25 + 0.07 * round
        if task == "code":
            prompt = f"Write a Python function add{a}(x) that returns x + {a}.\nOnly code.\n"
            text = f"def add{a}(x):\n    return x + {a}\n" if good else f"add{a} = lambda y:\n  x + {a} # not sure"
        else:
            prompt = f"<|im_start|>user\nWhat is {a} + {b}?<|im_end|>\n<|im_start|>assistant\n"
            text = f"The sum of {a} and {b} is {a + b}." if good else f"{a} plus {b} makes {a + b + 1}, I think. " * 2
        if use == 1 and index == 0:
            text = HOSTILE
        ids = self.tokenizer.encode(text)
        sample_id = f"r{round}-g{use}-s{index}"
        logprobs = [-abs(self.chance.gauss(0.4, 0.5)) for _ in ids]
        finish = "stop" if good else self.chance.choice(["stop", "length"])
        return Rollout(
            sample_id, sample_id, 0, f"r{round}-g{use}", f"{task}-{use}", task, round - 1, [1, 2, 3], ids,
            [1] * len(ids), logprobs, finish, 1.0, 1.0, 0, index, "processed", prompt, text,
        )  # fmt: skip

    def _reward(self, row: Rollout, round: int) -> Reward:
        good = row.text.startswith(("def", "The sum"))
        if row.text == HOSTILE:
            return Reward(row.sample_id, {"exact": None, "format": 0.0}, None, ["malformed"])
        flags = ["truncated"] if row.finish_reason == "length" else []
        return Reward(row.sample_id, {"exact": float(good), "format": 0.5}, float(good) + (0 if good else 0.1), flags)

    def _logprob(self, row: Rollout) -> Logprob:
        old = [
            min(-1e-4, value + self.chance.gauss(0, 0.04) * (8 if self.chance.random() < 0.06 else 1))
            for value in row.rollout_logprobs
        ]
        return Logprob(row.sample_id, old, None, [0.5] * len(old))

    def _evaluation(self, label: str) -> tuple[Evaluation, list[Rollout], list[Reward]]:
        rate = 0.30 if label == "before" else 0.62
        outcomes, rollouts, rewards = [], [], []
        for use in range(48):
            samples = [self._rollout(0, use, index) for index in range(8)]
            passed = sum(self.chance.random() < rate for _ in range(8))
            outcomes.append(PromptOutcome(prompt_id=f"p{use}", task=samples[0].task, samples=8, passed=passed))
            rollouts += samples
            rewards += [self._reward(row, 0) for row in samples]
        scores = [self._score(outcomes, k, task) for task in (None, "code", "two-digit sums") for k in (1, 8)]
        found = Evaluation(
            label=label, policy_version=0 if label == "before" else self.config.rounds, temperature=1.0, samples=8,
            scores=scores, outcomes=outcomes, response_tokens=14.2, truncated=0.05,
        )  # fmt: skip
        return found, rollouts, rewards

    def _score(self, outcomes: Sequence[PromptOutcome], k: int, task: str | None) -> Score:
        values = [pass_at_k(found.samples, found.passed, k) for found in outcomes if task in (None, found.task)]
        low, high = bootstrap_interval(values, 500, 0)
        return Score(k=k, task=task, prompts=len(values), value=sum(values) / len(values), low=low, high=high)

    def _evaluate(self, label: str, found: tuple[Evaluation, list[Rollout], list[Reward]]) -> None:
        evaluation, rollouts, rewards = found
        files = {
            "evaluation.json": lambda path: path.write_text(evaluation.model_dump_json()),
            "samples.parquet": lambda path: write_records(path, rollouts, Rollout),
            "rewards.parquet": lambda path: write_records(path, rewards, Reward),
        }
        overall = {f"pass@{score.k}": score.value for score in evaluation.scores if score.task is None}
        self._stage("evaluate", {"evaluation": ("evaluation", files)}, 37.0, overall, label=label)

    def _stage(self, name, outputs, seconds, metrics=None, series=(), round=None, label="", metadata=None) -> None:
        record = StageRecord(
            run_id=self.run_id, stage=name, label=label, round=round, key="0" * 64, started_at=self.clock
        )
        if record.title == self.fail_at:
            failed = {"error": "reward.scorers.0.name is 'exakt': no such scorer; did you mean 'exact'?"}
            self.store.put_run_record(record.model_copy(update=failed | {"finished_at": self.clock + 1}))
            raise _Failed
        digests = {}
        for output, (kind, files) in outputs.items():
            with tempfile.TemporaryDirectory() as folder:
                for path, write in files.items():
                    write(Path(folder) / path)
                about = (metadata or {}).get(output, {})
                digests[output] = self._put(kind, Path(folder), name, round, digests, about)
        timings = {
            "start": 0.3,
            "import": 2.4 if seconds > 10 else 0.2,
            "download": 0.4,
            "compute": seconds,
            "upload": 0.5,
        }
        timings["total"] = sum(timings.values())
        finished = self.clock + timings["total"] - timings["start"]
        self.store.put_run_record(
            record.model_copy(
                update={
                    "key": f"{abs(hash((name, round, label))):064x}"[:64],
                    "outputs": digests,
                    "metrics": metrics or {},
                    "series": list(series),
                    "timings": timings,
                    "peak_memory_mb": 1800.0 if seconds > 10 else 140.0,
                    "finished_at": finished,
                }
            )
        )
        self.clock = finished + 0.9

    def _put(
        self, kind: Kind, folder: Path, stage: str, round: int | None, inputs: dict[str, str], metadata: dict
    ) -> str:
        lineage = Lineage(stage=stage, round=round, inputs=inputs)
        return self.store.put_artifact(kind, folder, lineage=lineage, counts={"rows": 128}, metadata=metadata).digest


class _Failed(Exception):
    """The made-up stage failed: what comes after it is not reached."""


def _rows(name: str, records: Sequence[Record]) -> dict:
    types = {"rollouts": Rollout, "executions": Execution, "rewards": Reward, "logprobs": Logprob}
    return {f"{name}.parquet": lambda path: write_records(path, records, types[name])}


def _worst_tokens(rollouts: Sequence[Rollout], logprobs: Sequence[Logprob]) -> list[dict]:
    found = [
        {"sample_id": rollout.sample_id, "position": at, "trainer": old, "sampler": sampled}
        for rollout, row in zip(rollouts, logprobs, strict=True)
        for at, (old, sampled) in enumerate(zip(row.old_logprobs, rollout.rollout_logprobs, strict=True))
    ]
    return sorted(found, key=lambda each: -abs(each["trainer"] - each["sampler"]))[:10]


def _bytes(size: int):
    return lambda path: path.write_bytes(b"\0" * size)


if __name__ == "__main__":
    from burnish.stages.report import collect_run, write_report

    with tempfile.TemporaryDirectory() as scratch:
        given = {"stop_at": 5} if sys.argv[2:] == ["stop"] else {"fail_at": sys.argv[2] if sys.argv[2:] else None}
        made = SyntheticRun(open_folder_store(Path(scratch)), **given)
        made.write()
        write_report(collect_run(made.store, made.run_id, made.config, Path(scratch) / "files"), Path(sys.argv[1]))
