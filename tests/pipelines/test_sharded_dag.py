"""The DAG of a run whose rollouts and executions are shared by pods."""

import pytest
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from burnish.contracts.loading import load_config
from pipelines.placement import ClusterPlacement
from pipelines.stage_placement import PLACEMENT
from pipelines.train import compile_pipeline


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The IR by further settings; each is compiled once."""
    known = {}

    def compiled(*overrides):
        if overrides not in known:
            path = tmp_path_factory.mktemp("ir") / "ir.yaml"
            compile_pipeline(
                load_config(None, ["name=golden", "rounds=1", *overrides]), path, ClusterPlacement(tag="1.2.3")
            )
            known[overrides] = next(yaml.safe_load_all(path.read_text()))
        return known[overrides]

    return compiled


def dag_of(ir, title):
    """The tasks of the DAG that holds the task with this title, by title."""
    for dag in [ir["root"]["dag"], *(c["dag"] for c in ir["components"].values() if "dag" in c)]:
        by_title = {task["taskInfo"]["name"]: task for task in dag["tasks"].values()}
        if title in by_title:
            return by_title
    raise AssertionError(f"there is no task {title!r}")


def executor_of(ir, task):
    return ir["deploymentSpec"]["executors"][ir["components"][task["componentRef"]["name"]]["executorLabel"]][
        "container"
    ]


def source(task, name):
    return task["inputs"]["artifacts"][name]["taskOutputArtifact"]


def test_one_shard_compiles_without_loops(compiled):
    assert "for-loop" not in str(compiled())
    assert "comp-gather" not in str(compiled())


@pytest.mark.parametrize("stage", ["rollout", "execute"])
def test_both_stages_loop_over_the_list_that_validate_gives(compiled, stage):
    ir = compiled("rollout.shards=3")
    json_format.ParseDict(ir, pipeline_spec_pb2.PipelineSpec())
    loop = dag_of(ir, "round 1 - update")[f"round 1 - {stage} shards"]
    channel = loop["parameterIterator"]["items"]["inputParameter"]
    given = loop["inputs"]["parameters"][channel]["taskOutputParameter"]
    assert given == {"producerTask": "validate", "outputParameterKey": "Output"}
    (inner,) = ir["components"][loop["componentRef"]["name"]]["dag"]["tasks"].values()
    item = {"componentInputParameter": loop["parameterIterator"]["itemInput"]}
    assert inner["inputs"]["parameters"]["shard"] == item
    assert inner["retryPolicy"]["maxRetryCount"] == PLACEMENT[stage].retries
    assert executor_of(ir, inner)["image"] == f"burnish/{stage}:1.2.3"


def test_nothing_of_a_loop_is_asked_of_the_pipeline(compiled):
    """As KFP's issue 13273 has it, a leaked loop variable makes the exit handler's driver fail."""
    ir = compiled("rollout.shards=3")
    (group,) = (c for name, c in ir["components"].items() if name.startswith("comp-exit-handler"))
    assert not [name for name in group["inputDefinitions"]["parameters"] if "loop-item" in name or "Output" in name]


def test_stages_after_the_loops_read_what_was_gathered(compiled):
    tasks = dag_of(compiled("rollout.shards=3"), "round 1 - update")
    gathers = {stage: tasks[f"round 1 - {stage} gather"] for stage in ("rollout", "execute")}
    for stage, output in (("rollout", "rollouts"), ("execute", "executions")):
        loop = source(gathers[stage], "shards")
        assert loop["producerTask"].startswith("for-loop")
        assert loop["outputArtifactKey"] == f"pipelinechannel--{stage}-{output}"
        assert gathers[stage]["inputs"]["parameters"]["stage"]["runtimeValue"]["constant"] == stage
    rollouts = {"producerTask": "gather", "outputArtifactKey": "whole"}
    for stage in ("logprob", "reward", "update"):
        assert source(tasks[f"round 1 - {stage}"], "rollouts") == rollouts
    assert source(tasks["round 1 - reward"], "executions") == rollouts | {"producerTask": "gather-2"}
    assert "gather-2" not in tasks["round 1 - logprob"]["dependentTasks"]


def test_gathering_takes_no_gpu(compiled):
    ir = compiled("rollout.shards=3")
    container = executor_of(ir, dag_of(ir, "round 1 - update")["round 1 - rollout gather"])
    assert container["image"] == "burnish/reward:1.2.3"
    assert "accelerator" not in container["resources"]


def test_execution_may_stay_with_one_pod(compiled):
    tasks = dag_of(compiled("rollout.shards=3", "execute.sharded=false"), "round 1 - update")
    assert "round 1 - rollout gather" in tasks
    assert source(tasks["round 1 - reward"], "executions")["producerTask"] == "execute"


def test_the_number_of_shards_is_not_in_the_dag(compiled):
    three, five = (compiled(f"rollout.shards={number}") for number in (3, 5))
    for ir in (three, five):
        ir["root"]["inputDefinitions"]["parameters"]["config"].pop("defaultValue", None)
    assert three == five


def test_a_pipeline_without_loops_says_so_to_validate(compiled):
    for overrides, sharded in (((), False), (("rollout.shards=3",), True)):
        task = dag_of(compiled(*overrides), "validate")["validate"]
        assert task["inputs"]["parameters"]["sharded"]["runtimeValue"]["constant"] is sharded
