"""The whole run: validate -> sft -> rounds -> evaluate, with the report as exit handler."""

import json
from pathlib import Path
from typing import Any

from kfp import compiler, dsl
from kfp.dsl.base_component import BaseComponent

from burnish.contracts.artifacts import stage_title
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import ConfigError
from components.evaluate.component import evaluate
from components.report.component import report
from components.sft.component import sft
from components.validate.component import validate
from pipelines.round import Place, RunInputs, State, training_round

# etcd refuses workflow objects near 1.5 MB; Argo's object is larger than the IR it is made from.
MAX_IR_BYTES = 700_000


def unplaced(task: dsl.PipelineTask, stage: str) -> dsl.PipelineTask:
    """For one machine: no secrets, no node selection, and a failure is final instead of retried."""
    return task.set_caching_options(False)


def build_pipeline(config: RunConfig, place: Place = unplaced) -> BaseComponent:
    """The KFP pipeline of `config`: its rounds and staleness are compiled in, the rest are parameters.

    The defaults of the parameters are `config` itself, so a run started from an empty form is that run. Parameters
    other than `config`, `overrides` and `run_id` are single settings: `evaluate_samples` is `evaluate.samples`.
    """
    shape = config
    default = compact_config(config)

    def stage(component: Any, **inputs: Any) -> dsl.PipelineTask:
        title = stage_title(component.name, label=inputs.get("label", ""))
        return place(component(**inputs), component.name).set_display_name(title)

    @dsl.pipeline(name=f"burnish-{shape.name}", description="RL post-training of a language model")
    def burnish_train(
        config: str = default,
        evaluate_samples: str = "",
        model_path: str = "",
        overrides: str = "",
        rollout_prompts_per_round: str = "",
        rollout_shards: str = "",
        run_id: str = "",
        track_experiment: str = "",
        update_learning_rate: str = "",
    ):
        identity = {"run_id": run_id, "job_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER}
        # One by one: the backend does not reliably fill a parameter into a longer text.
        settings = {
            "config": config,
            "overrides": overrides,
            "evaluate_samples": evaluate_samples,
            "model_path": model_path,
            "rollout_prompts_per_round": rollout_prompts_per_round,
            "rollout_shards": rollout_shards,
            "track_experiment": track_experiment,
            "update_learning_rate": update_learning_rate,
        }
        last = stage(report, **settings, **identity)
        with dsl.ExitHandler(last, name="run"):
            checked = stage(
                validate,
                **settings,
                rounds=shape.rounds,
                max_staleness=shape.max_staleness,
                refresh_interval=shape.update.kl.refresh_interval,
                sharded=shape.rollout.shards > 1,
                **identity,
            )
            read = {name: checked.outputs[name] for name in ("resolved", "prompts")}
            # states[r] is what there is after round r.
            states = [State.of(stage(sft, **read, **identity))]
            stage(evaluate, label="before", policy=states[0].policy, **read, **identity)
            # KFP's local runner loops only over an output of this name.
            shards = checked.outputs["Output"] if shape.rollout.shards > 1 else None
            run = RunInputs(
                identity, **read, rollout_shards=shards, execute_shards=shards if shape.execute.sharded else None
            )
            for round in range(1, shape.rounds + 1):
                sampled = states[max(0, round - 1 - shape.max_staleness)]
                reference = states[reference_round(round, shape.update.kl.refresh_interval)]
                states.append(training_round(round, run, sampled, reference, states[-1], place))
            if shape.rounds:
                stage(evaluate, label="after", policy=states[-1].policy, **read, **identity)

    return burnish_train


def reference_round(round: int, refresh_interval: int) -> int:
    """The round whose policy is the reference of `round`; 0 is the policy before the first."""
    return (round - 1) // refresh_interval * refresh_interval if refresh_interval else 0


def compact_config(config: RunConfig) -> str:
    """JSON of what differs from the defaults; KFP allows 10 kB for all parameters together."""
    return json.dumps(json.loads(config.model_dump_json(exclude_defaults=True)), sort_keys=True)


def compile_pipeline(config: RunConfig, path: Path, place: Place = unplaced) -> int:
    """Write the IR of `config`'s pipeline to `path`; returns its size in bytes. Raises ConfigError over budget."""
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler.Compiler().compile(build_pipeline(config, place), str(path))
    size = path.stat().st_size
    if size > MAX_IR_BYTES:
        path.unlink()
        raise ConfigError(
            f"rounds={config.rounds} makes an IR of {size} bytes, over the budget of {MAX_IR_BYTES}; use fewer rounds"
        )
    return size
