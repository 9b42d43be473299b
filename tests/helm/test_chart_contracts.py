"""Names that the chart shares with the code: where one side changes, these fail."""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import yaml
from rendered_chart import CHART, ROOT, pick, pod_of

import burnish
from burnish.cli import serve
from burnish.cli.kfp_client import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from burnish.cli.main import main
from burnish.cli.serve import settings_of
from burnish.contracts.loading import load_config
from burnish.contracts.sampling import ROLLOUT_TOKEN
from burnish.rewards.backends import TOKEN_VARIABLE as SANDBOX_TOKEN_VARIABLE
from burnish.serve.routes import Routes as RolloutRoutes
from burnish.serve.settings import ServeSettings
from pipelines import placement
from sandbox.__main__ import _parser, _settings
from sandbox.limits import Limits
from sandbox.routes import Routes
from sandbox.service import _COLLECT_S

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_the_chart_has_the_version_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == burnish.__version__


def test_stages_find_the_settings_and_the_secret_that_the_chart_names(render):
    for name in ("minimal", "everything"):
        settings = pick(render(name), "ConfigMap", placement.SETTINGS_CONFIG_MAP)
        assert set(settings["data"]) <= set(placement.SETTINGS)
    assert set(settings["data"]) == set(placement.SETTINGS), "with everything on nothing is missing"
    assert DEFAULTS["store"]["existingSecret"] == placement.STORE_SECRET
    for pod in ("rl-seaweedfs",):
        keys = [
            one["valueFrom"]["secretKeyRef"]["key"]
            for one in pod_of(render("everything"), pod)["containers"][0]["env"]
            if "valueFrom" in one
        ]
        assert keys == list(placement.STORE_KEYS)


def test_settings_follow_the_values_and_else_the_development_services(render):
    assert pick(render("minimal"), "ConfigMap", "burnish")["data"] == {
        "BURNISH_STORE": "s3://runs/burnish",
        "BURNISH_S3_ENDPOINT": "https://s3.example.com",
        "BURNISH_S3_REGION": "us-east-1",
    }
    assert pick(render("everything"), "ConfigMap", "burnish")["data"] == {
        "BURNISH_STORE": "s3://burnish",
        "BURNISH_S3_ENDPOINT": "http://rl-seaweedfs.runs.svc:8333",
        "BURNISH_S3_REGION": "us-east-1",
        "MLFLOW_TRACKING_URI": "http://rl-mlflow.runs.svc:5000",
    }
    assert pick(render(), "ConfigMap", "burnish")["data"] == {"BURNISH_S3_REGION": "us-east-1"}


@pytest.mark.parametrize("component", ["sandbox", "rolloutServer", "exporter", "pipelineUpload"])
def test_every_image_of_ours_has_its_dockerfile_and_the_default_registry_is_that_of_the_pipelines(component):
    assert (ROOT / f"docker/{DEFAULTS[component]['image']['repository']}.Dockerfile").exists()
    assert DEFAULTS["image"]["registry"] == placement.ClusterPlacement().registry


def test_an_image_is_named_as_the_pipelines_name_it(render):
    stage = DEFAULTS["pipelineUpload"]["image"]["repository"]
    (container,) = pod_of(render(), "burnish-pipeline-upload")["containers"]
    assert container["image"] == placement.ClusterPlacement().image(stage)
    placed = placement.ClusterPlacement(registry="registry.example.com/team/burnish", tag="1.2.3")
    (container,) = pod_of(render("everything"), "rl-pipeline-upload")["containers"]
    assert container["image"] == placed.image(stage)


@pytest.mark.parametrize("name", ["defaults", "everything"])
def test_the_sandbox_understands_its_arguments(render, name):
    fullname = "rl" if name == "everything" else "burnish"
    pod = pod_of(render(name), f"{fullname}-sandbox")
    (container,) = pod["containers"]
    assert container["command"] == ["python3", "-m", "sandbox", "serve"]
    settings = _settings(_parser("sandbox").parse_args(["serve", *container["args"]]))
    assert pod["terminationGracePeriodSeconds"] >= settings.drain_s + _COLLECT_S + 5
    if name == "everything":
        assert settings.workers == 8
        assert (settings.most.wall_s, settings.most.memory_mb, settings.most.files) == (2.5, 1024, 2_000_000)
        assert settings.preload == ("numpy",)
        assert (settings.enclosure, settings.allow_degraded) == ("nsjail", True)
        (token,) = (one for one in container["env"] if "valueFrom" in one)
        assert token["name"] == SANDBOX_TOKEN_VARIABLE
        # The stages present what the sandbox asks for.
        assert (token["valueFrom"]["secretKeyRef"]["key"],) == placement.SANDBOX_KEYS == (SANDBOX_TOKEN_VARIABLE,)
        assert token["valueFrom"]["secretKeyRef"]["name"] == placement.SANDBOX_SECRET


def test_the_defaults_are_the_services_own():
    own = _settings(_parser("sandbox").parse_args(["serve"]))
    ours = DEFAULTS["sandbox"]
    assert (ours["queue"], ours["queuePerOwner"]) == (own.bounds.queue, own.bounds.queue_per_owner)
    assert (ours["memoryMb"], ours["ttlSeconds"]) == (own.bounds.memory_mb, own.bounds.ttl_s)
    assert ours["drainSeconds"] == own.drain_s
    limits = SCHEMA["properties"]["sandbox"]["properties"]["limits"]["properties"]
    assert set(limits) == {limit.name for limit in fields(Limits)}
    megabytes = ours["workers"] * own.most.memory_mb + ours["memoryMb"] + 256
    assert int(ours["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024 >= megabytes


def test_probes_ask_for_paths_that_the_service_has(render):
    (container,) = pod_of(render(), "burnish-sandbox")["containers"]
    routes = Path(sys.modules[Routes.__module__].__file__).read_text()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert f'path == "{container[probe]["httpGet"]["path"]}"' in routes


@pytest.mark.parametrize("name", ["defaults", "everything"])
def test_what_the_upload_job_calls_compiles_every_pipeline_of_the_values(render, name, tmp_path, capsys, monkeypatch):
    fullname = "rl" if name == "everything" else "burnish"
    (container,) = pod_of(render(name), f"{fullname}-pipeline-upload")["containers"]
    script, zero, *arguments = container["args"]
    (call,) = re.findall(r'python3 -m burnish\.cli\.main (\w+) "\$config" "\$@" (--[\w-]+)', script)
    assert call == ("submit", "--upload-only")
    assert zero == "upload"
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert set(environment) <= {"KFP_HOST", TOKEN_VARIABLE, TOKEN_FILE_VARIABLE}
    monkeypatch.delenv("KFP_HOST", raising=False)
    configs = pick(render(name), "ConfigMap", f"{fullname}-pipeline-upload")["data"]
    assert configs
    for file, text in configs.items():
        (tmp_path / file).write_text(text)
        with pytest.raises(SystemExit) as caught:
            main(
                [
                    "submit",
                    str(tmp_path / file),
                    *arguments,
                    "--upload-only",
                    "--dry-run",
                    f"--host={environment['KFP_HOST']}",
                ]
            )
        assert caught.value.code == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["pipeline"] == f"burnish-{file.removesuffix('.yaml')}"
        assert shown["host"] == environment["KFP_HOST"]
        assert shown["namespace"] == ("team-a" if name == "everything" else None)


def test_the_upload_jobs_script_calls_once_for_each_file_and_stops_at_the_first_failure(render, tmp_path):
    (container,) = pod_of(render(), "burnish-pipeline-upload")["containers"]
    script, *arguments = container["args"]
    for name in ("a.yaml", "b b.yaml"):
        (tmp_path / name).touch()
    stub = tmp_path / "python3"
    stub.write_text(f'#!/bin/sh\nfor word; do echo "$word"; done\n[ ! -e {tmp_path}/fail ]\n')
    stub.chmod(0o755)
    run = [*container["command"], script.replace("/etc/burnish/", f"{tmp_path}/"), *arguments]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(run, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls = [call.splitlines() for call in done.stdout.split("-m\n")[1:]]
    tail = [*arguments[1:], "--upload-only"]
    assert calls == [["burnish.cli.main", "submit", f"{tmp_path}/{name}", *tail] for name in ("a.yaml", "b b.yaml")]
    (tmp_path / "fail").touch()
    done = subprocess.run(run, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout.count("submit") == 1


def test_uploaded_pipelines_use_the_charts_own_sandbox(render):
    (container,) = pod_of(render(), "burnish-pipeline-upload")["containers"]
    service = pick(render(), "Service", "burnish-sandbox")
    (url,) = (word.split("=", 1)[1] for word in container["args"] if word.startswith("execute.service_url="))
    assert url == f"http://{service['metadata']['name']}.runs.svc:{service['spec']['ports'][0]['port']}"
    for values in ("--set=sandbox.enabled=false", "--set=pipelineUpload.useSandbox=false"):
        (container,) = pod_of(render("defaults", values), "burnish-pipeline-upload")["containers"]
        assert not [word for word in container["args"] if word.startswith("execute.")]


def test_the_upload_job_runs_again_with_every_upgrade(render):
    job = pick(render(), "Job", "burnish-pipeline-upload")
    assert job["metadata"]["annotations"] == {
        "helm.sh/hook": "post-install,post-upgrade",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_the_upload_presents_a_given_token_else_its_own(render):
    (container,) = pod_of(render("everything"), "rl-pipeline-upload")["containers"]
    path = next(one["value"] for one in container["env"] if one["name"] == TOKEN_FILE_VARIABLE)
    assert any(path.startswith(mount["mountPath"] + "/") for mount in container["volumeMounts"])
    pod = pod_of(render("everything", "--set=kfp.existingSecret=kfp-login"), "rl-pipeline-upload")
    names = [one["name"] for one in pod["containers"][0]["env"]]
    assert TOKEN_VARIABLE in names
    assert TOKEN_FILE_VARIABLE not in names
    assert not [volume for volume in pod["volumes"] if "projected" in volume]


def test_the_pipelines_of_the_values_are_the_examples():
    for name, config in DEFAULTS["pipelineUpload"]["pipelines"].items():
        given = {"name": name, **config}
        assert given == yaml.safe_load((ROOT / f"examples/{name}.yaml").read_text())


def test_numbers_survive_the_way_through_helm(render, tmp_path):
    (tmp_path / "config.yaml").write_text(
        pick(render(), "ConfigMap", "burnish-pipeline-upload")["data"]["quickstart.yaml"]
    )
    assert load_config(tmp_path / "config.yaml") == load_config(ROOT / "examples/quickstart.yaml")


def test_the_rollout_server_asks_for_its_gpu_and_keeps_its_memory(render):
    (container,) = pod_of(render("everything"), "rl-rollout-server")["containers"]
    assert container["resources"]["limits"] == {"memory": "32Gi", "nvidia.com/gpu": 1}
    assert "--device=cuda" in container["args"]
    (container,) = pod_of(render("everything", "--set=rolloutServer.gpus=0"), "rl-rollout-server")["containers"]
    assert container["resources"]["limits"] == {"memory": "32Gi"}
    assert "--device=cpu" in container["args"]


def test_the_rollout_server_understands_its_arguments_and_stages_present_its_token(render):
    pod = pod_of(render("everything"), "rl-rollout-server")
    (container,) = pod["containers"]
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    assert container["command"] == ["python3", "-m", "burnish.cli.main", "serve"]
    settings = settings_of(parser.parse_args(["serve", *container["args"]]))
    assert settings == ServeSettings(device="cuda", gpu_memory_utilization=0.9)
    assert pod["terminationGracePeriodSeconds"] > settings.drain_s
    (token,) = (one for one in container["env"] if "valueFrom" in one)
    assert token["name"] == ROLLOUT_TOKEN
    assert (token["valueFrom"]["secretKeyRef"]["key"],) == placement.ROLLOUT_KEYS
    assert token["valueFrom"]["secretKeyRef"]["name"] == placement.ROLLOUT_SECRET
    routes = Path(sys.modules[RolloutRoutes.__module__].__file__).read_text()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert f'"GET {container[probe]["httpGet"]["path"]}"' in routes
    schema = SCHEMA["properties"]["rolloutServer"]["properties"]
    assert set(schema["engine"]["enum"]) == set(get_args(ServeSettings.model_fields["engine"].annotation))
    assert set(schema["dtype"]["enum"]) == set(get_args(ServeSettings.model_fields["dtype"].annotation))


def test_the_rollout_server_reads_the_store_with_a_secret_of_its_own_or_that_of_the_stages(render):
    for arguments, secret in (((), "burnish-store-reader"), (("--set=rolloutServer.storeSecret=",), "burnish-store")):
        (container,) = pod_of(render("everything", *arguments), "rl-rollout-server")["containers"]
        assert container["envFrom"] == [{"configMapRef": {"name": "burnish"}}, {"secretRef": {"name": secret}}]


@pytest.mark.parametrize("token", [None, "shared-secret"])
def test_the_script_of_helm_test_passes_against_a_real_sandbox(render, token):
    (container,) = pod_of(render(), "burnish-test-sandbox")["containers"]
    assert container["command"] == ["python3", "-c"]
    script, url = container["args"]
    assert url == "http://burnish-sandbox.runs.svc:8000"
    environment = os.environ | ({SANDBOX_TOKEN_VARIABLE: token} if token else {})
    service = subprocess.Popen(
        [sys.executable, "-m", "sandbox", "serve", "--port=0", "--workers=1"],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = json.loads(next(line for line in service.stderr if '"listening"' in line))["port"]
        run = [sys.executable, "-c", script, f"http://127.0.0.1:{port}"]
        done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "['wrong']" in done.stdout
        if token:
            without = {name: value for name, value in environment.items() if name != SANDBOX_TOKEN_VARIABLE}
            assert subprocess.run(run, env=without, capture_output=True, timeout=60).returncode != 0
    finally:
        service.terminate()
        service.wait(30)
