"""What the chart says to programs that are not ours: Prometheus, Grafana, KFP's launcher, MLflow."""

import json
import re
import sys
from pathlib import Path

import yaml
from rendered_chart import CHART, pick, pod_of

from sandbox.metrics import Metrics
from sandbox.routes import Routes
from sandbox.verdicts import Result


def test_rules_and_dashboard_ask_only_for_metrics_that_the_sandbox_serves(render):
    gauges = set(re.findall(r'"(sandbox_\w+)"', Path(sys.modules[Routes.__module__].__file__).read_text()))
    served = set(re.findall(r"^# TYPE (\w+)", Metrics().render({name: ("", 0.0) for name in gauges}, 0), re.MULTILINE))
    assert len(served) > 8
    (rules,) = (
        item
        for item in render("defaults", "--set=monitoring.prometheusRule.enabled=true")
        if item["kind"] == "PrometheusRule"
    )
    expressions = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    dashboard = json.loads((CHART / "dashboards/sandbox.json").read_text())
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {re.sub("_bucket$", "", name) for text in expressions for name in re.findall(r"\b(\w+)\{", text)}
    assert asked
    assert asked <= served
    # No rule of the defaults rests on what somebody else would have to push.
    assert {group["name"] for group in rules["spec"]["groups"]} == {"burnish-sandbox"}
    verdicts = Path(sys.modules[Result.__module__].__file__).read_text()
    for verdict in re.findall(r'verdict="(\w+)"', " ".join(expressions)):
        assert f"or {verdict} (" in verdicts


def test_rules_that_need_other_exporters_are_complete_once_they_are_on(render):
    (rules,) = (item for item in render("everything") if item["kind"] == "PrometheusRule")
    alerts = {rule["alert"]: rule for group in rules["spec"]["groups"] for rule in group["rules"]}
    assert {"BurnishGpuIdleNow", "BurnishRewardFlat", "BurnishKlHigh", "BurnishCostNearBudget"} <= set(alerts)
    for rule in alerts.values():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_prometheus_finds_the_services_by_their_labels(render):
    objects = render("everything")
    (monitor,) = (item for item in objects if item["kind"] == "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    selector = monitor["spec"]["selector"]
    (expression,) = selector["matchExpressions"]
    found = set()
    for item in objects:
        labels = item["metadata"]["labels"]
        wanted = selector["matchLabels"].items() <= labels.items() and labels[expression["key"]] in expression["values"]
        if item["kind"] == "Service" and wanted:
            assert endpoint["port"] in [port["name"] for port in item["spec"]["ports"]]
            found.add(item["metadata"]["name"])
    assert found == {"rl-sandbox", "rl-rollout-server", "rl-exporter"}


def test_kfps_launcher_reads_what_the_chart_writes(render):
    """Names and keys of backend/src/v2/config in kubeflow/pipelines."""
    data = pick(render("everything"), "ConfigMap", "kfp-launcher")["data"]
    assert data["defaultPipelineRoot"] == "s3://mlpipeline/v2/artifacts"
    assert yaml.safe_load(data["providers"]) == {
        "s3": {
            "default": {
                "endpoint": "rl-seaweedfs.runs.svc:8333",
                "region": "us-east-1",
                "disableSSL": True,
                "forcePathStyle": True,
                "credentials": {
                    "fromEnv": False,
                    "secretRef": {
                        "secretName": "burnish-store",
                        "accessKeyKey": "AWS_ACCESS_KEY_ID",
                        "secretKeyKey": "AWS_SECRET_ACCESS_KEY",
                    },
                },
            }
        }
    }
    arguments = ("--set=kfpLauncher.enabled=true", "--set=kfpLauncher.pipelineRoot=s3://b/p")
    data = pick(render("minimal", *arguments), "ConfigMap", "kfp-launcher")["data"]
    provider = yaml.safe_load(data["providers"])["s3"]["default"]
    assert (provider["endpoint"], provider["disableSSL"]) == ("s3.example.com", False)
    data = pick(render("minimal", *arguments, "--set=kfpLauncher.disableSSL=true"), "ConfigMap", "kfp-launcher")["data"]
    assert yaml.safe_load(data["providers"])["s3"]["default"]["disableSSL"] is True
    assert not [item for item in render() if item["metadata"]["name"] == "kfp-launcher"]


def test_mlflow_answers_to_the_names_that_stages_use(render):
    (container,) = pod_of(render("everything"), "rl-mlflow")["containers"]
    (hosts,) = (
        word.removeprefix("--allowed-hosts=") for word in container["args"] if word.startswith("--allowed-hosts=")
    )
    uri = pick(render("everything"), "ConfigMap", "burnish")["data"]["MLFLOW_TRACKING_URI"]
    assert uri.removeprefix("http://").replace(":5000", ":*") in hosts.split(",")
    assert {"localhost:*", "mlflow.example.com"} <= set(hosts.split(","))
