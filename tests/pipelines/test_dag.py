import inspect
import json
from pathlib import Path

import pytest
import yaml
from google.protobuf import json_format
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from burnish.contracts.config import RunConfig
from burnish.contracts.errors import ConfigError
from burnish.contracts.loading import load_config, parse_config, section_model
from burnish.contracts.stages import MAX_TASKS, STAGES, dag_tasks
from components.evaluate.component import evaluate
from components.execute.component import execute
from components.gather.component import gather
from components.logprob.component import logprob
from components.report.component import report
from components.reward.component import reward
from components.rollout.component import rollout
from components.sft.component import sft
from components.update.component import update
from components.validate.component import validate
from pipelines import train
from pipelines.placement import ClusterPlacement
from pipelines.stage_placement import PLACEMENT
from pipelines.train import compact_config, compile_pipeline

ROOT = Path(__file__).parents[2]
RECIPES = ("quickstart", "ppo", "code", "sharded")
COMPONENTS = (validate, sft, rollout, execute, reward, logprob, update, evaluate, report)


def compiled(tmp_path, overrides=(), place=None):
    config = load_config(None, ["name=golden", *overrides])
    compile_pipeline(config, tmp_path / "ir.yaml", place or ClusterPlacement(tag="1.2.3"))
    return list(yaml.safe_load_all((tmp_path / "ir.yaml").read_text()))


def tasks_of(ir):
    """Every task of the DAG by display name, whichever sub-DAG holds it."""
    dags = [ir["root"]["dag"], *(c["dag"] for c in ir["components"].values() if "dag" in c)]
    return {task["taskInfo"]["name"]: task for dag in dags for task in dag["tasks"].values()}


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.name)
def test_a_component_reads_and_writes_what_its_stage_declares(component):
    stage = STAGES[component.name]
    spec = component.component_spec
    inputs = {name for name, given in (spec.inputs or {}).items() if given.type.startswith("system.")}
    outputs = {name for name, made in spec.outputs.items() if made.type.startswith("system.")} - {"metrics"}
    assert inputs - {"resolved"} == set(stage.reads)
    assert outputs == set(stage.writes)
    assert spec.description


def test_every_stage_has_one_component_and_one_placement():
    assert {component.name for component in COMPONENTS} == set(STAGES) == set(PLACEMENT)


def test_only_torch_stages_ask_for_a_gpu():
    assert {name for name, placement in PLACEMENT.items() if placement.gpus} == {
        name for name, stage in STAGES.items() if stage.torch
    }


def test_components_import_nothing_heavy_at_the_top():
    for component in (*COMPONENTS, gather):
        source = Path(inspect.getfile(component.python_func)).read_text()
        top_level = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
        assert all(line.startswith("from kfp") for line in top_level), top_level


def test_the_ir_is_valid_for_the_kfp_backend(tmp_path):
    pipeline, platform = compiled(tmp_path, ["rounds=2"])
    json_format.ParseDict(pipeline, pipeline_spec_pb2.PipelineSpec())
    for executor in platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
        json_format.ParseDict(executor, kubernetes_executor_config_pb2.KubernetesExecutorConfig())


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_the_dag_has_the_tasks_that_the_budget_counts(tmp_path, rounds):
    pipeline, _ = compiled(tmp_path, [f"rounds={rounds}"])
    names = set(tasks_of(pipeline)) - {"exit-handler-run", "run"}
    assert len(names) == dag_tasks(rounds)
    assert {"validate", "sft", "evaluate - before", "report"} <= names
    assert ("evaluate - after" in names) == (rounds > 0)


def test_execution_and_logprobs_do_not_wait_for_each_other(tmp_path):
    pipeline, _ = compiled(tmp_path, ["rounds=1"])
    tasks = tasks_of(pipeline)
    assert "logprob" not in tasks["round 1 - reward"]["dependentTasks"]
    assert {"reward", "logprob"} <= set(tasks["round 1 - update"]["dependentTasks"])
    assert not {"execute", "reward"} & set(tasks["round 1 - logprob"]["dependentTasks"])


@pytest.mark.parametrize(("staleness", "source"), [(0, "update-2"), (1, "update"), (2, "sft")])
def test_staleness_is_the_shape_of_the_dag(tmp_path, staleness, source):
    pipeline, _ = compiled(tmp_path, ["rounds=3", f"max_staleness={staleness}"])
    inputs = tasks_of(pipeline)["round 3 - rollout"]["inputs"]["artifacts"]["policy"]["taskOutputArtifact"]
    assert inputs["producerTask"] == source
    trained = tasks_of(pipeline)["round 3 - logprob"]["inputs"]["artifacts"]["policy"]["taskOutputArtifact"]
    assert trained["producerTask"] == "update-2"


def test_every_task_has_its_image_retries_secrets_and_no_kfp_cache(tmp_path):
    pipeline, platform = compiled(tmp_path, ["rounds=1"])
    executors = pipeline["deploymentSpec"]["executors"]
    placed = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    images = set()
    for name, task in tasks_of(pipeline).items():
        if name in {"exit-handler-run", "run"}:
            continue
        label = pipeline["components"][task["componentRef"]["name"]]["executorLabel"]
        container = executors[label]["container"]
        stage = container["image"].removeprefix("burnish/").removesuffix(":1.2.3")
        images.add(stage)
        assert task["retryPolicy"]["maxRetryCount"] == PLACEMENT[stage].retries
        assert not task.get("cachingOptions", {}).get("enableCache")
        assert ("accelerator" in container["resources"]) == bool(PLACEMENT[stage].gpus)
        secrets = {secret["secretName"]: secret.get("optional", False) for secret in placed[label]["secretAsEnv"]}
        tokens = {"execute": ["sandbox"], "rollout": ["rollout"], "evaluate": ["sandbox", "rollout"]}.get(stage, [])
        assert secrets == {"burnish-store": False} | {f"burnish-{service}": True for service in tokens}
    assert images == set(STAGES)


def test_no_secret_value_or_installation_is_in_the_ir(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-very-secret")
    compiled(tmp_path)
    text = (tmp_path / "ir.yaml").read_text()
    assert "hunter2" not in text
    assert "pip install" not in text


def test_the_empty_form_runs_the_compiled_configuration(tmp_path):
    overrides = ["rounds=1", "rollout.temperature=0.5"]
    pipeline, _ = compiled(tmp_path, overrides)
    parameters = pipeline["root"]["inputDefinitions"]["parameters"]
    assert all("defaultValue" in parameter for parameter in parameters.values())
    config = parse_config(json.loads(parameters["config"]["defaultValue"]))
    assert config == load_config(None, ["name=golden", *overrides])
    assert {name for name, parameter in parameters.items() if parameter["defaultValue"]} == {"config"}


def test_a_setting_of_the_form_reaches_validate_and_report_as_it_was_entered(tmp_path):
    pipeline, _ = compiled(tmp_path, ["rounds=1"])
    form = set(pipeline["root"]["inputDefinitions"]["parameters"]) - {"config", "overrides", "run_id"}
    assert form, "otherwise this test says nothing"
    for name in form:
        section, _, field = name.partition("_")
        model = section_model(RunConfig.model_fields[section].annotation)
        assert field in model.model_fields, f"{name} is not named after a setting"
    tasks = tasks_of(pipeline)
    for stage, prefix in (("validate", "pipelinechannel--"), ("report", "")):
        inputs = tasks[stage]["inputs"]["parameters"]
        # KFP's backend fills a whole parameter in, but not one inside a longer text.
        assert {name: inputs[name] for name in form} == {
            name: {"componentInputParameter": f"{prefix}{name}"} for name in form
        }


@pytest.mark.parametrize("name", RECIPES)
def test_the_defaults_fit_kfps_parameter_limit(name):
    assert len(compact_config(load_config(ROOT / "examples" / f"{name}.yaml"))) < 9_000


def test_make_golden_writes_every_recipe_that_is_tested():
    makefile = (ROOT / "Makefile").read_text()
    assert f"RECIPES := {' '.join(RECIPES)}\n" in makefile
    assert {path.stem for path in (ROOT / "pipelines" / "compiled").glob("*.yaml")} == {*RECIPES, "campaign"}


def test_an_ir_over_budget_is_refused_and_not_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "MAX_IR_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"rounds=1 makes an IR of \d+ bytes"):
        compile_pipeline(load_config(None, ["rounds=1"]), tmp_path / "ir.yaml")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", RECIPES)
def test_the_golden_ir_is_what_the_code_compiles(tmp_path, name):
    """`make golden` writes it anew after a wanted change."""
    config = load_config(ROOT / "examples" / f"{name}.yaml")
    size = compile_pipeline(config, tmp_path / "ir.yaml", ClusterPlacement())
    assert (tmp_path / "ir.yaml").read_text() == (ROOT / "pipelines" / "compiled" / f"{name}.yaml").read_text()
    assert size < train.MAX_IR_BYTES
    assert dag_tasks(config.rounds, config.rollout.shards, config.execute_shards) <= MAX_TASKS


@pytest.mark.parametrize(("interval", "source"), [(0, "sft"), (1, "update-3"), (2, "update-2"), (3, "update-3")])
def test_the_reference_is_refreshed_by_the_shape_of_the_dag(tmp_path, interval, source):
    pipeline, _ = compiled(tmp_path, ["rounds=4", f"update.kl.refresh_interval={interval}"])
    inputs = tasks_of(pipeline)["round 4 - logprob"]["inputs"]["artifacts"]
    assert inputs["reference"]["taskOutputArtifact"]["producerTask"] == source
    assert inputs["policy"]["taskOutputArtifact"]["producerTask"] == "update-3"


def test_an_update_hands_policy_trainer_state_critic_and_verdict_to_the_next(tmp_path):
    pipeline, _ = compiled(tmp_path, ["rounds=3", "max_staleness=1"])
    tasks = tasks_of(pipeline)
    for name in ("policy", "trainer_state", "critic", "verdict"):
        source = tasks["round 3 - update"]["inputs"]["artifacts"][name]["taskOutputArtifact"]
        assert source == {"producerTask": "update-2", "outputArtifactKey": f"updated_{name}"}
    # The verdict that a rollout reads is that of its own policy: an earlier one, so that rounds may overlap.
    rollout_inputs = tasks["round 3 - rollout"]["inputs"]["artifacts"]
    assert rollout_inputs["verdict"]["taskOutputArtifact"]["producerTask"] == "update"
