import re
from pathlib import Path

import pytest
import yaml
from google.protobuf import json_format
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from burnish.cli.main import main
from burnish.contracts.errors import ConfigError
from burnish.contracts.loading import load_config
from burnish.contracts.stages import STAGES
from pipelines.placement import ClusterPlacement, load_placement
from pipelines.stage_placement import PLACEMENT, StagePlacement
from pipelines.train import compile_pipeline

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "placement").glob("*.yaml"))
TORCH_STAGES = {name for name, stage in STAGES.items() if stage.torch}

EVERYTHING = {
    "cpu": "1500m",
    "memory": "3Gi",
    "gpus": 2,
    "gpu_type": "nvidia.com/mig-3g.40gb",
    "shared_memory": "4Gi",
    "scratch": "50Gi",
    "cache_claim": "burnish-cache",
    "cache_gb": 200,
    "timeout_s": 600,
    "retries": 5,
    "queue": "research",
    "labels": {"team": "language"},
    "annotations": {"sidecar.istio.io/inject": "false"},
    "node_selector": {"disk": "nvme"},
    "tolerations": [
        {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "spot", "value": "yes", "effect": "NoExecute", "toleration_seconds": 30},
    ],
    "pull_policy": "Always",
    "pull_secrets": ["registry"],
    "run_as_non_root": True,
    "run_as_user": 1234,
    "run_as_group": 0,
    "env": {"HF_HUB_OFFLINE": 1},
    "secrets": {"hugging-face": ["HF_TOKEN"]},
}


def placed(tmp_path, stage="update", **placement):
    """The task, container and Kubernetes settings of one stage, after both parts were parsed as KFP's backend does."""
    path = tmp_path / "ir.yaml"
    compile_pipeline(load_config(None, ["rounds=1"]), path, ClusterPlacement.model_validate(placement))
    pipeline, platform = yaml.safe_load_all(path.read_text())
    json_format.ParseDict(pipeline, pipeline_spec_pb2.PipelineSpec())
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    for executor in executors.values():
        json_format.ParseDict(executor, kubernetes_executor_config_pb2.KubernetesExecutorConfig())
    dags = [pipeline["root"]["dag"], *(part["dag"] for part in pipeline["components"].values() if "dag" in part)]
    (task,) = (dag["tasks"][stage] for dag in dags if stage in dag["tasks"])
    container = pipeline["deploymentSpec"]["executors"][f"exec-{stage}"]["container"]
    return task, container, executors[f"exec-{stage}"]


def test_every_setting_of_a_stage_is_in_the_ir(tmp_path):
    assert set(EVERYTHING) == set(StagePlacement.model_fields), "this test speaks of every setting"
    task, container, pod = placed(tmp_path, stages={"update": EVERYTHING})
    assert container["resources"] == {
        "cpuRequest": 1.5,
        "resourceCpuRequest": "1500m",
        "memoryRequest": 3.221225472,
        "resourceMemoryRequest": "3Gi",
        "memoryLimit": 3.221225472,
        "resourceMemoryLimit": "3Gi",
        "accelerator": {
            "type": "nvidia.com/mig-3g.40gb",
            "resourceType": "nvidia.com/mig-3g.40gb",
            "count": "2",
            "resourceCount": "2",
        },
    }
    assert task["retryPolicy"] == {
        "maxRetryCount": 5,
        "backoffDuration": "10s",
        "backoffFactor": 2.0,
        "backoffMaxDuration": "90000s",
    }
    assert {entry["name"]: entry["value"] for entry in container["env"]} == {
        "BURNISH_CACHE": "/var/cache/burnish",
        "BURNISH_CACHE_GB": "200",
        "BURNISH_IMAGE": container["image"],
        "BURNISH_RESOURCES": '{"cpu": 1.5, "nvidia.com/mig-3g.40gb": 2.0}',
        "HF_HUB_OFFLINE": "1",
    }
    assert pod["activeDeadlineSeconds"] == "600"
    assert pod["imagePullPolicy"] == "Always"
    assert [secret["secretName"] for secret in pod["imagePullSecret"]] == ["registry"]
    assert pod["podMetadata"] == {
        "labels": {"kueue.x-k8s.io/queue-name": "research", "team": "language"},
        "annotations": {"sidecar.istio.io/inject": "false"},
    }
    assert pod["nodeSelector"] == {"labels": {"disk": "nvme"}}
    assert pod["tolerations"] == [
        {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": "30"},
    ]
    assert pod["securityContext"] == {"runAsUser": "1234", "runAsGroup": "0", "runAsNonRoot": True}
    assert pod["emptyDirMounts"] == [
        {"volumeName": "shared-memory", "mountPath": "/dev/shm", "medium": "Memory", "sizeLimit": "4Gi"},
        {"volumeName": "scratch", "mountPath": "/tmp", "sizeLimit": "50Gi"},
    ]
    (volume,) = pod["pvcMount"]
    assert (volume["constant"], volume["mountPath"]) == ("burnish-cache", "/var/cache/burnish")
    assert volume["pvcNameParameter"] == {"runtimeValue": {"constant": "burnish-cache"}}
    secrets = {secret["secretName"]: secret["keyToEnv"] for secret in pod["secretAsEnv"]}
    assert secrets["hugging-face"] == [{"secretKey": "HF_TOKEN", "envVar": "HF_TOKEN"}]


def test_the_default_pod_is_bounded_in_time_and_not_root(tmp_path):
    for stage in ("update", "validate"):
        _, container, pod = placed(tmp_path, stage)
        assert int(pod["activeDeadlineSeconds"]) == PLACEMENT[stage].timeout_s
        assert pod["securityContext"] == {"runAsNonRoot": True}
        assert pod["imagePullPolicy"] == "IfNotPresent"
        assert "podMetadata" not in pod
        assert "nodeSelector" not in pod
        assert "pvcMount" not in pod
        assert [entry["name"] for entry in container["env"]] == ["BURNISH_IMAGE", "BURNISH_RESOURCES"]


def test_a_task_knows_its_run_its_store_and_its_tracking_server(tmp_path):
    _, _, pod = placed(tmp_path, "execute")
    assert pod["fieldPathAsEnv"] == [{"name": "KFP_RUN_ID", "fieldPath": "metadata.labels['pipeline/runid']"}]
    (settings,) = pod["configMapAsEnv"]
    assert (settings["configMapName"], settings["optional"]) == ("burnish", True)
    assert {key["configMapKey"] for key in settings["keyToEnv"]} == {key["envVar"] for key in settings["keyToEnv"]}
    assert "MLFLOW_TRACKING_URI" in {key["envVar"] for key in settings["keyToEnv"]}


def test_what_is_off_is_not_in_the_ir(tmp_path):
    off = {"timeout_s": 0, "shared_memory": None, "run_as_non_root": False}
    _, _, pod = placed(tmp_path, stages={"update": off})
    assert not {"activeDeadlineSeconds", "emptyDirMounts", "securityContext"} & set(pod)


def test_a_digest_goes_before_the_tag(tmp_path):
    digest = "sha256:" + "a" * 64
    _, container, _ = placed(tmp_path, registry="example.com/b", tag="7", digests={"update": digest})
    assert container["image"] == f"example.com/b/update@{digest}"
    _, container, _ = placed(tmp_path, "sft", registry="example.com/b", tag="7", digests={"update": digest})
    assert container["image"] == "example.com/b/sft:7"


def test_the_more_particular_layer_wins_and_mappings_are_joined():
    placement = ClusterPlacement.model_validate(
        {
            "every_stage": {"memory": "1Gi", "labels": {"a": "every", "b": "every"}},
            "gpu_stages": {"memory": "2Gi", "labels": {"b": "gpu", "c": "gpu"}},
            "stages": {"update": {"memory": "3Gi", "labels": {"c": "own"}}},
        }
    )
    assert {stage: placement.of(stage).memory for stage in STAGES} == {
        stage: "3Gi" if stage == "update" else "2Gi" if stage in TORCH_STAGES else "1Gi" for stage in STAGES
    }
    assert placement.of("update").labels == {"a": "every", "b": "gpu", "c": "own"}
    assert placement.of("report").labels == {"a": "every", "b": "every"}
    assert placement.of("update").cpu == PLACEMENT["update"].cpu


def test_a_stage_that_gives_its_gpu_up_does_not_go_to_gpu_nodes():
    placement = ClusterPlacement.model_validate(
        {"gpu_stages": {"node_selector": {"gpu": "yes"}}, "stages": {"rollout": {"gpus": 0}}}
    )
    assert placement.of("rollout").node_selector == {}
    assert placement.of("update").node_selector == {"gpu": "yes"}


def test_without_gpus_nothing_of_gpu_nodes_is_asked_for():
    placement = ClusterPlacement.model_validate({"gpus": False, "gpu_stages": {"node_selector": {"gpu": "yes"}}})
    assert all(placement.of(stage).gpus == 0 and not placement.of(stage).node_selector for stage in STAGES)


def test_each_training_process_has_a_gpu():
    placement = ClusterPlacement().for_processes(4)
    assert {stage: placement.of(stage).gpus for stage in TORCH_STAGES} == {
        stage: 4 if stage in {"sft", "update"} else 1 for stage in TORCH_STAGES
    }
    assert ClusterPlacement().for_processes(0) == ClusterPlacement()
    assert ClusterPlacement(gpus=False).for_processes(4).of("update").gpus == 0


def test_processes_that_disagree_with_the_gpus_asked_for_are_refused():
    placement = ClusterPlacement.model_validate({"stages": {"update": {"gpus": 8}}})
    assert placement.for_processes(0).of("update").gpus == 8
    with pytest.raises(ConfigError, match=r"runtime\.processes is 4, but update is given 8 GPUs; make them equal"):
        placement.for_processes(4)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_compiles(tmp_path, path):
    placement = load_placement(path)
    compile_pipeline(load_config(ROOT / "examples" / "quickstart.yaml"), tmp_path / "ir.yaml", placement)
    assert (tmp_path / "ir.yaml").stat().st_size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("registri: x", r"registri is not a known key; did you mean 'registry'\?"),
        ("every_stage: {memroy: 1Gi}", r"every_stage\.memroy is not a known key; did you mean 'memory'\?"),
        ("stages: {update: {gpu: 1}}", r"stages\.update\.gpu is not a known key; did you mean 'gpus'\?"),
        ("stages: {updat: {gpus: 1}}", r"'updat' is no stage; did you mean 'update'\?"),
        ("digests: {update: latest}", r"digests\.update is 'latest': string should match pattern"),
        ("stages: {reward: {gpus: 1}}", r"reward is given GPUs, but has no torch to use them"),
        ("every_stage: {memory: 3 GB}", r"every_stage\.memory is '3 GB': string should match pattern"),
        ("every_stage: {scratch: 10K}", r"every_stage\.scratch is '10K'"),
        ("every_stage: {run_as_user: 0}", r"every_stage\.run_as_user is 0: input should be greater than or equal to 1"),
        ("every_stage: {tolerations: [{operator: Exists, value: x}]}", r"operator Exists takes any value"),
        ("every_stage: {tolerations: [{value: x}]}", r"operator Equal needs a key"),
        ("every_stage: {tolerations: [{ke: x}]}", r"tolerations\.0\.ke is not a known key; did you mean 'key'\?"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path, text, message):
    path = tmp_path / "placement.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_placement(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def burnish(*arguments):
    """The exit code of a verb."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_arguments_go_on_top_of_the_file(tmp_path, capsys):
    path = tmp_path / "placement.yaml"
    path.write_text("registry: example.com/b\ntag: '1'\nevery_stage: {queue: research}\n")
    assert burnish("plan", "--placement", path, "--tag", "2", "rounds=1") == 0
    shown = capsys.readouterr().out
    assert "example.com/b/update:2" in shown
    assert re.search(r"update +4 +48Gi +1 nvidia\.com/gpu +24", shown)
    assert burnish("plan", "--placement", path, "rounds=1", "runtime.device=cpu") == 0
    assert "nvidia" not in capsys.readouterr().out
