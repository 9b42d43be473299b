"""The alerts and panels on runs: they ask for what the exporter serves, and fire when, and only when, they should."""

import argparse
import json
import os
import re
import shutil
import subprocess

import pytest
import yaml
from rendered_chart import CHART, pick, pod_of

from burnish.cli import exporter
from burnish.monitor.exporter import HELP
from pipelines import placement

JOB = 'job="rl-exporter",namespace="runs"'
LABELS = {"run_id", "name", "round", "stage", "currency", "when", "k"}


@pytest.fixture(scope="module")
def groups(render):
    (rules,) = (item for item in render("everything") if item["kind"] == "PrometheusRule")
    return {group["name"]: group["rules"] for group in rules["spec"]["groups"]}


@pytest.fixture(scope="module")
def promtool():
    """Prometheus' own checker; on Debian it comes with the package `prometheus`."""
    program = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not program:
        pytest.skip("promtool is not installed: set PROMTOOL, or see whether your system has it with prometheus")

    def run(*arguments):
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def expressions(groups):
    dashboard = json.loads((CHART / "dashboards/training.json").read_text())
    yield from (rule["expr"] for rule in groups["burnish-training"])
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel["targets"])


def test_alerts_and_panels_ask_only_for_what_the_exporter_serves(groups):
    asked = {name for text in expressions(groups) for name in re.findall(r"\b(burnish_\w+)", text)}
    assert len(asked) > 10
    assert asked <= set(HELP)
    for text in expressions(groups):
        for listed in re.findall(r"\b(?:by|on) \(([^)]*)\)", text):
            assert set(listed.split(", ")) <= LABELS, text


def test_expressions_of_all_rules_are_well_formed(groups):
    pairs = {")": "(", "]": "[", "}": "{"}
    for text in [*expressions(groups), *(rule["expr"] for rules in groups.values() for rule in rules)]:
        bare = re.sub(r'"[^"]*"', '""', text)
        assert '"' not in bare.replace('""', ""), text
        still_open = []
        for mark in re.findall(r"[][(){}]", bare):
            if mark in pairs:
                assert still_open[-1:] == [pairs[mark]], text
                still_open.pop()
            else:
                still_open.append(mark)
        assert not still_open, text
        for window in re.findall(r"\[([^]]*)\]", bare):
            assert re.fullmatch(r"[1-9][0-9]*[smhd]", window), text


def test_every_selector_names_this_releases_own_exporter(groups):
    for rule in groups["burnish-training"]:
        for selector in re.findall(r"burnish_\w+\{([^}]*)\}", rule["expr"]):
            assert selector == JOB, rule["alert"]


def test_without_the_exporter_there_are_no_alerts_that_could_never_fire(render):
    arguments = ("--set=monitoring.prometheusRule.enabled=true", "--set=sandbox.enabled=false")
    assert not [item for item in render("defaults", *arguments) if item["kind"] == "PrometheusRule"]
    (rules,) = (
        item
        for item in render("defaults", *arguments, "--set=exporter.enabled=true")
        if item["kind"] == "PrometheusRule"
    )
    assert [group["name"] for group in rules["spec"]["groups"]] == ["burnish-training"]


def test_dashboards_come_with_what_they_show(render):
    everything = pick(render("everything"), "ConfigMap", "rl-dashboard")["data"]
    assert set(everything) == {"burnish-sandbox.json", "burnish-training.json"}
    assert json.loads(everything["burnish-training.json"])["uid"] == "burnish-training"
    only = pick(render("defaults", "--set=monitoring.dashboard.enabled=true"), "ConfigMap", "burnish-dashboard")["data"]
    assert set(only) == {"burnish-sandbox.json"}


def test_the_exporter_understands_its_arguments_and_reads_the_store_as_stages_do(render):
    (container,) = pod_of(render("everything"), "rl-exporter")["containers"]
    assert container["command"] == ["python3", "-m", "burnish.cli.main", "exporter"]
    parser = argparse.ArgumentParser()
    exporter.add_parser(parser.add_subparsers())
    given = parser.parse_args(["exporter", *container["args"]])
    assert (given.host, given.port, given.active_hours) == ("0.0.0.0", 9095, 12.5)
    assert container["envFrom"] == [{"configMapRef": {"name": placement.SETTINGS_CONFIG_MAP}}]
    keys = [one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one]
    assert [key["key"] for key in keys] == list(placement.STORE_KEYS)
    assert {key["name"] for key in keys} == {"burnish-store-reader"}
    (container,) = pod_of(render("defaults", "--set=exporter.enabled=true"), "burnish-exporter")["containers"]
    named = {one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"] if "valueFrom" in one}
    assert named == {placement.STORE_SECRET}


def test_another_store_starts_the_exporter_anew(render):
    def checksum(*arguments):
        objects = render("defaults", "--set=exporter.enabled=true", *arguments)
        pod = pick(objects, "Deployment", "burnish-exporter")["spec"]["template"]
        return pod["metadata"]["annotations"]["checksum/settings"]

    assert checksum() != checksum("--set=store.url=s3://other")


def test_promtool_finds_no_fault_in_the_rules(groups, promtool, tmp_path):
    promtool("check", "rules", written_rules(groups, tmp_path))


def written_rules(groups, folder):
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}))
    return path


def series(name, values, run="r-1", **labels):
    inside = {"job": "rl-exporter", "namespace": "runs", "run_id": run, "name": run[:-2]} | labels
    labels = ",".join(f'{key}="{value}"' for key, value in inside.items())
    return {"series": f"{name}{{{labels}}}", "values": values}


def active(minutes, value=1, run="r-1"):
    return series("burnish_run_active", f"{value}x{minutes}", run)


LATER = "_ " * 30
"""Half an hour without a value."""

# What Prometheus saw, minute by minute, and who shall be heard of after so many minutes.
CASES = {
    "BurnishRewardFlat": (
        # Four rounds of half an hour each; the pod of the exporter was replaced in between.
        [
            *(series("burnish_reward_mean", f"{'_ ' * 30 * n}0.5x29", round=str(n + 1)) for n in range(3)),
            series("burnish_reward_mean", f"{'_ ' * 90}0.501x60", round="4", pod="another"),
            *(
                series("burnish_reward_mean", f"{'_ ' * 30 * n}0.{n + 1}x29", "learns-1", round=str(n))
                for n in range(5)
            ),
            series("burnish_reward_mean", "0.5x150", "slow-1", round="1"),
            *(active(150, run=run) for run in ("r-1", "learns-1", "slow-1")),
        ],
        {100: ["r-1"], 80: []},
    ),
    "BurnishKlHigh": (
        [
            series("burnish_kl", "0.9x20", round="7"),
            series("burnish_kl", "0.4x20", "calm-1", round="2"),
            series("burnish_kl", "0.9x20", "over-1", round="2"),
            active(20),
            active(20, run="calm-1"),
            active(20, 0, run="over-1"),
        ],
        {10: ["r-1"], 3: []},
    ),
    "BurnishEntropyCollapsing": (
        [
            series("burnish_entropy", "0.2x20", round="3"),
            series("burnish_entropy_start", "1x20"),
            series("burnish_entropy", "0.2x20", "sure-1", round="3"),
            series("burnish_entropy_start", "0.3x20", "sure-1"),
            active(20),
            active(20, run="sure-1"),
        ],
        {10: ["r-1"]},
    ),
    "BurnishGpuIdle": (
        [
            series("burnish_stage_gpu_utilization_percent", "2x20", stage="rollout", round="1"),
            series("burnish_stage_gpu_utilization_percent", "80x20", stage="update", round="1"),
            active(20),
        ],
        {10: ["r-1"]},
    ),
    "BurnishCostNearBudget": (
        [
            series("burnish_cost", "95x20", currency="EUR"),
            series("burnish_budget", "100x20", currency="EUR"),
            series("burnish_cost", "95x20", "free-1", currency="EUR"),
            active(20),
            active(20, run="free-1"),
        ],
        {10: ["r-1"]},
    ),
    "BurnishRunStalled": (
        [
            series("burnish_run_progress_timestamp_seconds", "0x200"),
            series("burnish_run_progress_timestamp_seconds", "0+60x200", "goes-1"),
            series("burnish_run_progress_timestamp_seconds", "0x200", "over-1"),
            active(200),
            active(200, run="goes-1"),
            active(200, 0, run="over-1"),
        ],
        {185: ["r-1"], 175: []},
    ),
    "BurnishStageFailed": ([series("burnish_run_failed_stages", "1x40"), active(40)], {20: ["r-1"], 10: []}),
    "BurnishRunStopped": ([series("burnish_run_stopped", "1x20"), active(20)], {5: ["r-1"]}),
}


def test_every_alert_on_runs_has_a_case(groups):
    assert {rule["alert"] for rule in groups["burnish-training"]} == {*CASES, "BurnishExporterBlind"}


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_is_heard_of_the_runs_it_is_about_and_of_no_other(groups, promtool, tmp_path, alert):
    seen, heard = CASES[alert]
    (rule,) = (rule for rule in groups["burnish-training"] if rule["alert"] == alert)
    test = {"interval": "1m", "input_series": seen, "promql_expr_test": []}
    for minute, runs in heard.items():
        # Their texts are not what this is about, so alerts are counted by the series that Prometheus makes of them.
        test["promql_expr_test"].append(
            {
                "expr": f'count by (run_id) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": f'{{run_id="{run}"}}', "value": 1} for run in runs],
            }
        )
    rules = written_rules({"burnish-training": [rule]}, tmp_path)
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}, width=10_000)
    )
    promtool("test", "rules", tmp_path / "test.yaml")


def test_an_exporter_that_is_gone_or_blind_is_heard_of(groups, promtool, tmp_path):
    (rule,) = (rule for rule in groups["burnish-training"] if rule["alert"] == "BurnishExporterBlind")
    rules = written_rules({"burnish-training": [rule]}, tmp_path)
    name, firing = "burnish_exporter_scan_timestamp_seconds", 'count(ALERTS{alertstate="firing"})'

    def case(values, firing_alerts):
        samples = [{"labels": "{}", "value": firing_alerts}] if firing_alerts else []
        given = [{"series": f"{name}{{{JOB}}}", "values": values}] if values else []
        return {
            "interval": "1m",
            "input_series": given,
            "promql_expr_test": [{"expr": firing, "eval_time": "30m", "exp_samples": samples}],
        }

    tests = [case("0+60x60", 0), case("0x60", 1), case("", 1)]
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests})
    )
    promtool("test", "rules", tmp_path / "test.yaml")
