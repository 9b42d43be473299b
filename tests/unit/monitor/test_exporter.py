import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from burnish.contracts.artifacts import Lineage, StageRecord
from burnish.contracts.errors import ConfigError, StoreError
from burnish.contracts.loading import dump_config, parse_config
from burnish.monitor.exporter import HELP, Exporter, exposition, make_server
from burnish.monitor.figures import samples
from burnish.monitor.watcher import RunWatcher
from burnish.store import open_store

HOUR = 3600.0
PRICES = {"cpu_hour": 0.5, "currency": "EUR", "budget": 4}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    return open_store(str(tmp_path / "store"))


def put(store, run_id, stage, round=None, *, seconds=HOUR, **more):
    values = {"run_id": run_id, "stage": stage, "round": round, "key": "k", "timings": {"total": seconds}}
    store.put_run_record(StageRecord(**values | {"resources": {"cpu": 2.0}} | more))


def put_config(store, tmp_path, run_id="demo-1", **settings):
    folder = tmp_path / f"resolved-{run_id}"
    folder.mkdir()
    config = parse_config({"name": "demo", "rounds": 3, "cost": PRICES} | settings)
    (folder / "config.yaml").write_text(dump_config(config))
    manifest = store.put_artifact("config", folder, lineage=Lineage(stage="validate"), counts={}, metadata={})
    put(store, run_id, "validate", outputs={"resolved": manifest.digest})


def scan(store, now=None, active_s=HOUR, max_runs=10):
    return RunWatcher(store, active_s, max_runs).scan(time.time() if now is None else now)


def figures(store, **more):
    """Value by name and labels, run_id and name left out."""
    found = {}
    for run in scan(store, **more):
        for name, labels, value in samples(run):
            rest = tuple(labels[key] for key in labels if key not in {"run_id", "name"})
            found[name, *rest] = value
    return found


def test_the_latest_round_of_each_figure_is_served_and_no_other(store, tmp_path):
    put_config(store, tmp_path)
    for round in (1, 2):
        put(store, "demo-1", "reward", round, metrics={"reward/mean": 0.25 * round, "solved/mean": None})
        put(store, "demo-1", "logprob", round, metrics={"entropy": 3.0 / round})
    put(store, "demo-1", "update", 1, metrics={"clip_fraction": 0.125})
    found = figures(store)
    assert found["burnish_reward_mean", "2"] == 0.5
    assert found["burnish_clip_fraction", "1"] == 0.125
    assert (found["burnish_entropy", "2"], found["burnish_entropy_start",]) == (1.5, 3.0)
    assert ("burnish_reward_mean", "1") not in found
    assert (found["burnish_run_rounds",], found["burnish_run_rounds_done",]) == (3.0, 1.0)


def test_what_was_not_measured_is_no_figure_and_never_0(store, tmp_path):
    put_config(store, tmp_path)
    put(store, "demo-1", "logprob", 1, metrics={"kl_ref": None, "ess": float("nan")}, resources={})
    names = {name for name, *_ in figures(store)}
    assert not names & {"burnish_kl", "burnish_effective_samples_share", "burnish_cost"}
    assert "burnish_budget" in names


def test_cost_is_what_the_records_add_up_to(store, tmp_path):
    put_config(store, tmp_path)
    put(store, "demo-1", "sft", seconds=2 * HOUR)
    found = figures(store)
    # Two cores for one and for two hours, at 0.50 a core.
    assert (found["burnish_cost", "EUR"], found["burnish_budget", "EUR"]) == (pytest.approx(3.0), 4.0)


def test_a_run_is_active_until_its_report_is_its_last_record(store, tmp_path):
    put(store, "demo-1", "rollout", 1)
    time.sleep(0.02)
    put(store, "demo-1", "report")
    assert figures(store)["burnish_run_active",] == 0.0
    time.sleep(0.02)
    put(store, "demo-1", "update", 1)
    assert figures(store)["burnish_run_active",] == 1.0


def test_a_failed_stage_and_a_stop_are_told(store):
    put(store, "demo-1", "sft", error="out of memory")
    put(store, "demo-1", "rollout", 2, skipped=True, stop_reason="the budget")
    found = figures(store)
    assert (found["burnish_run_failed_stages",], found["burnish_run_stopped",]) == (1.0, 1.0)
    assert not [name for name, *_ in found if name == "burnish_response_tokens_mean"]


def test_utilisation_is_the_mean_over_gpus_and_moments(store):
    load = [
        {"time": 1.0, "gpu_0_utilization_percentage": 80.0, "gpu_1_utilization_percentage": 0.0},
        {"time": 2.0, "gpu_0_utilization_percentage": 10.0, "gpu_1_utilization_percentage": 30.0},
    ]
    put(store, "demo-1", "update", 1, load=load)
    put(store, "demo-1", "reward", 1, load=[{"time": 1.0, "cpu_cores": 1.0}])
    found = figures(store)
    assert found["burnish_stage_gpu_utilization_percent", "update", "1"] == 30.0
    assert ("burnish_stage_gpu_utilization_percent", "reward", "1") not in found


def test_figures_are_those_of_all_shards_and_times_those_of_each(store):
    for shard in ("1/2", "2/2"):
        put(store, "demo-1", "rollout", 1, shard=shard, metrics={"response_length_mean": 1.0})
    put(store, "demo-1", "rollout", 1, metrics={"response_length_mean": 5.0, "shards": 2.0}, seconds=1.0)
    found = figures(store)
    assert found["burnish_response_tokens_mean", "1"] == 5.0
    times = {labels[0]: value for (name, *labels), value in found.items() if name == "burnish_stage_seconds"}
    assert times == {"rollout": 1.0, "rollout 1/2": HOUR, "rollout 2/2": HOUR}


def test_only_runs_that_did_something_lately_are_read_and_the_newest_first(store):
    for run_id in ("old-1", "mid-1", "new-1"):
        put(store, run_id, "sft")
        time.sleep(0.02)
    assert [run.run_id for run in scan(store, max_runs=2)] == ["new-1", "mid-1"]
    assert scan(store, now=time.time() + 2 * HOUR) == []


def test_a_record_is_read_once_and_again_when_it_changed(store, tmp_path, monkeypatch):
    put_config(store, tmp_path)
    put(store, "demo-1", "sft")
    watcher, gets = RunWatcher(store, HOUR, 10), []
    read = store.backend.get_bytes
    monkeypatch.setattr(store.backend, "get_bytes", lambda key: gets.append(key) or read(key))
    watcher.scan(time.time())
    # Two records, the configuration's manifest and its file.
    assert len(gets) == 4
    watcher.scan(time.time())
    assert len(gets) == 4
    put(store, "demo-1", "sft", error="killed")
    (run,) = watcher.scan(time.time())
    assert gets[4:] == ["runs/demo-1/sft.json"]
    assert {record.stage: record.error for record in run.records} == {"validate": None, "sft": "killed"}


def test_records_of_another_version_are_counted_and_the_rest_is_served(store):
    put(store, "demo-1", "sft")
    store.backend.put_bytes("runs/demo-1/logprob.json", json.dumps({"record_version": 99}).encode())
    store.backend.put_bytes("runs/demo-1/notes/more.json", b"not a record")
    exporter = Exporter(RunWatcher(store, HOUR, 10), 1.0)
    exporter.scan()
    assert "burnish_exporter_unreadable_records 1.0" in exporter.text()
    assert 'burnish_run_active{run_id="demo-1",name="demo"} 1.0' in exporter.text()


def test_a_configuration_of_another_version_costs_its_figures_only(store, tmp_path, monkeypatch):
    put_config(store, tmp_path)
    put(store, "demo-1", "reward", 1, metrics={"reward/mean": 0.5})

    def unknown(tree):
        raise ConfigError("a setting that this version does not know")

    monkeypatch.setattr("burnish.monitor.watcher.parse_config", unknown)
    (run,) = scan(store)
    assert run.config is None
    assert ("burnish_reward_mean", {"run_id": "demo-1", "name": "demo", "round": "1"}, 0.5) in [*samples(run)]


def test_a_store_that_is_away_leaves_what_was_read_and_says_so(store, monkeypatch, capsys):
    put(store, "demo-1", "sft")
    exporter = Exporter(RunWatcher(store, HOUR, 10), 1.0)
    exporter.scan()

    def away(prefix):
        raise StoreError("object store http://s3: cannot be reached")

    monkeypatch.setattr(store.backend, "list", away)
    exporter.scan()
    assert "burnish_exporter_scan_failures 1.0" in exporter.text()
    assert "burnish_run_active{" in exporter.text()
    assert "scan: object store http://s3: cannot be reached" in capsys.readouterr().out


def test_labels_cannot_break_out_of_their_quotes():
    text = exposition([("burnish_cost", {"name": 'a"b\\c\nd'}, 1.0)])
    assert text.splitlines()[-1] == r'burnish_cost{name="a\"b\\c\nd"} 1.0'


def test_every_metric_is_described_and_follows_prometheus_rules_for_names():
    for name, text in HELP.items():
        assert name.startswith("burnish_"), name
        assert name.replace("_", "a").isalnum(), name
        assert not name.endswith(("_total", "_count", "_sum", "_bucket")), f"{name}: that ending is not a gauge's"
        assert "\n" not in text
        assert text.endswith("."), name


def test_a_server_is_ready_after_the_first_look_and_healthy_while_it_looks(store):
    put(store, "demo-1", "sft")
    exporter = Exporter(RunWatcher(store, HOUR, 10), 60.0)
    server = make_server(exporter, "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def get(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=5) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, "", ""

    try:
        assert get("/readyz")[0] == 503
        # Nobody scans yet.
        assert get("/healthz")[0] == 503
        exporter.start()
        deadline = time.monotonic() + 10
        while get("/readyz")[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert get("/healthz")[0] == 200
        status, kind, text = get("/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert "burnish_exporter_runs 1.0" in text
        assert get("/")[0] == 404
    finally:
        server.shutdown()
        server.server_close()


def test_the_verb_serves_a_store_and_ends_when_it_is_told_to(store, tmp_path):
    put(store, "demo-1", "sft")
    environment = {"BURNISH_STORE": str(tmp_path / "store"), "BURNISH_CACHE": str(tmp_path / "cache"), "PATH": ""}
    command = [sys.executable, "-m", "burnish.cli.main", "exporter", "--port=0"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert "burnish_exporter_scan_failures 0.0" in answer.read().decode()
        loaded = f"import sys; sys.argv = {command[2:]!r}; import burnish.cli.exporter, burnish.monitor.exporter"
        heavy = "print([name for name in ('torch', 'mlflow', 'kfp') if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", f"{loaded}; {heavy}"], capture_output=True, text=True)
        assert done.stdout.strip() == "[]"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
