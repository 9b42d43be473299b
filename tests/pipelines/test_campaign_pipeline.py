"""The controller of a campaign as a pipeline: one light task that outlives its pods."""

import json
from pathlib import Path

import yaml
from google.protobuf import json_format
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from burnish.contracts.loading import load_config, parse_config
from pipelines.campaign import compile_campaign
from pipelines.placement import ClusterPlacement
from pipelines.stage_placement import StagePlacement

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "campaign.yaml"


def compiled(tmp_path, placement):
    compile_campaign(load_config(EXAMPLE), tmp_path / "ir.yaml", placement)
    return list(yaml.safe_load_all((tmp_path / "ir.yaml").read_text()))


def test_the_golden_ir_is_what_the_code_compiles(tmp_path):
    """`make golden` writes it anew after a wanted change."""
    compiled(tmp_path, ClusterPlacement())
    golden = ROOT / "pipelines" / "compiled" / "campaign.yaml"
    assert (tmp_path / "ir.yaml").read_text() == golden.read_text()
    assert "campaign examples/campaign.yaml --compile" in (ROOT / "Makefile").read_text()


def test_it_is_one_light_task_without_an_end_that_is_started_again_and_again(tmp_path):
    slow = StagePlacement(timeout_s=3600, queue="research")
    pipeline, platform = compiled(tmp_path, ClusterPlacement(registry="reg/team", tag="7", every_stage=slow))
    json_format.ParseDict(pipeline, pipeline_spec_pb2.PipelineSpec())
    (executor,) = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values()
    json_format.ParseDict(executor, kubernetes_executor_config_pb2.KubernetesExecutorConfig())
    assert "activeDeadlineSeconds" not in executor
    assert executor["podMetadata"]["labels"] == {
        "access-ml-pipeline": "true",
        "kueue.x-k8s.io/queue-name": "research",
    }
    (task,) = pipeline["root"]["dag"]["tasks"].values()
    assert task["retryPolicy"]["maxRetryCount"] == 1000
    assert task["retryPolicy"]["backoffFactor"] == 1.0
    (container,) = [each["container"] for each in pipeline["deploymentSpec"]["executors"].values()]
    assert container["image"] == "reg/team/validate:7"
    assert "accelerator" not in container["resources"]


def test_the_empty_form_is_the_campaign_with_the_placement_of_its_chunks(tmp_path):
    placement = ClusterPlacement(registry="reg/team", stages={"update": StagePlacement(gpus=8)})
    pipeline, _ = compiled(tmp_path, placement)
    parameters = pipeline["root"]["inputDefinitions"]["parameters"]
    default = {name: parameter["defaultValue"] for name, parameter in parameters.items()}
    assert parse_config(json.loads(default["config"])) == load_config(EXAMPLE)
    assert ClusterPlacement.model_validate_json(default["placement"]).of("update").gpus == 8
    assert sum(len(value) for value in default.values()) < 9_000, "KFP allows 10 kB for all parameters together"
