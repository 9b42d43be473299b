"""`burnish submit --watch` and `--attach` against the stand-in, with answers as KFP 2 gives them for Argo's nodes."""

import io
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import yaml
from kfp_stand_in import serve_kfp
from rich.console import Console

from burnish.cli import watch as watching
from burnish.cli.kfp_progress import Progress, Task, progress_of, tasks_of
from burnish.cli.main import main
from burnish.cli.watch import dag_table

NOTHING_YET = "1970-01-01T00:00:00Z"


def dag(**tasks):
    return {"dag": {"tasks": tasks}}


def task(component, title, *after):
    named = {"componentRef": {"name": component}, "taskInfo": {"name": title}}
    return named | {"retryPolicy": {"maxRetryCount": 2}} | ({"dependentTasks": list(after)} if after else {})


SPEC = {
    "root": dag(
        **{
            "exit-handler-1": task("comp-exit-handler-1", "run"),
            "report": task("comp-report", "report", "exit-handler-1"),
        }
    ),
    "components": {
        "comp-report": {"executorLabel": "exec-report"},
        "comp-stage": {"executorLabel": "exec-stage"},
        "comp-exit-handler-1": dag(
            rollout=task("comp-stage", "round 1 - rollout", "validate"),
            **{"rollout-2": task("comp-stage", "round 2 - rollout", "rollout")},
            validate=task("comp-stage", "validate"),
        ),
    },
}


def node(name, state, children=(), seconds=12):
    ended = state in {"SUCCEEDED", "FAILED"}
    return {
        "run_id": "r1",
        "display_name": name,
        "start_time": "2026-05-01T10:00:00Z",
        "end_time": f"2026-05-01T10:00:{seconds:02d}Z" if ended else NOTHING_YET,
        "child_tasks": [{"pod_name": pod} for pod in children],
    } | ({"state": state} if state else {})


def run(state, *nodes, **fields):
    source = {"pipeline_id": "p1", "pipeline_version_id": "v0"}
    given = {"run_id": "r1", "state": state, "run_details": {"task_details": list(nodes)}}
    return {"pipeline_version_reference": source} | given | fields


FAILED = run(
    "FAILED",
    node("run-x7k2p", "FAILED"),
    node("root-driver", "SUCCEEDED"),
    node("exit-handler-1", "FAILED"),
    node("validate-driver", "SUCCEEDED"),
    node("validate", "SUCCEEDED", ["run-x7k2p-11"]),
    node("executor", "SUCCEEDED", ["run-x7k2p-12"]),
    node("rollout-driver", "SUCCEEDED"),
    node("rollout", "FAILED", ["run-x7k2p-21"]),
    node("executor", "FAILED", ["run-x7k2p-22", "run-x7k2p-23"]),
    node("executor(0)", "FAILED"),
    node("executor(1)", "FAILED"),
    node("rollout-2-driver", None),
    node("rollout-2", None),
    node("exit-handler-1.onExit", "SUCCEEDED"),
    node("report", "SUCCEEDED"),
)


@pytest.fixture
def kfp_server(monkeypatch):
    monkeypatch.setattr(watching.time, "sleep", lambda _: None)
    with serve_kfp() as server:
        server.spec = {"pipeline_spec": SPEC, "platform_spec": {}}
        yield server


def attach(server, *more):
    with pytest.raises(SystemExit) as ended:
        main(["submit", "--host", server.host, "--attach", "r1", *more])
    return ended.value.code


def details(*nodes):
    """As the client hands them out."""

    def time(text):
        return datetime.fromisoformat(text.replace("Z", "+00:00"))

    return [SimpleNamespace(**one | {key: time(one[key]) for key in ("start_time", "end_time")}) for one in nodes]


def test_tasks_are_the_leaves_each_after_what_it_waits_for():
    assert [one.title for one in tasks_of(SPEC)] == ["validate", "round 1 - rollout", "round 2 - rollout", "report"]


def test_pods_with_labels_have_a_template_of_their_own():
    metadata = {"labels": {"queue": "q", "team": "t"}, "annotations": {"a": "b"}}
    executors = {"exec-stage": {"podMetadata": metadata}, "exec-report": {"secretAsEnv": []}}
    platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": executors}}}}
    found = {one.name: one.template for one in tasks_of({"pipeline_spec": SPEC, "platform_spec": platform})}
    assert found["validate"] == "metadata-1-2-retry-system-container-impl"
    assert found["report"] == "retry-system-container-impl"


def test_a_compiled_pipeline_is_read_as_kfp_returns_it(tmp_path, capsys):
    (tmp_path / "place.yaml").write_text("every_stage: {queue: research}")
    with pytest.raises(SystemExit):
        main(["compile", "rounds=2", "--placement", str(tmp_path / "place.yaml"), "-o", str(tmp_path / "ir.yaml")])
    pipeline, platform = yaml.safe_load_all((tmp_path / "ir.yaml").read_text())
    tasks = tasks_of({"pipeline_spec": pipeline, "platform_spec": platform})
    titles = [one.title for one in tasks]
    assert titles[:2] == ["validate", "sft"]
    assert titles[-1] == "report"
    assert titles.index("round 1 - update") < titles.index("round 2 - logprob") < titles.index("round 2 - update")
    assert len(titles) == len(set(titles)) == 15
    assert {one.template for one in tasks} == {"metadata-0-1-retry-system-container-impl"}


def test_a_watched_run_prints_a_line_a_change_and_ends_with_its_state(kfp_server, capsys):
    kfp_server.states = [
        run("PENDING"),
        run("RUNNING", node("validate-driver", "RUNNING")),
        run("RUNNING", node("validate-driver", "SUCCEEDED"), node("validate", "RUNNING")),
        run("RUNNING", node("validate-driver", "SUCCEEDED"), node("validate", "RUNNING")),
        run("SUCCEEDED", node("validate", "SUCCEEDED"), *(node(name, "SUCCEEDED") for name in ("rollout", "report"))),
    ]
    assert attach(kfp_server) == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "… validate starting",
        "▶ validate running",
        "✓ validate done in 12 s",
        "✓ round 1 - rollout done in 12 s",
        "✓ report done in 12 s",
        "run r1: succeeded",
    ]


def test_a_failed_task_is_named_with_the_last_error_of_its_last_attempt(kfp_server, capsys):
    kfp_server.states = [FAILED]
    log = "loading\nerror: rollout: no GPU memory; set rollout.batch_size lower\nI0501 launcher: exit status 5\n"
    kfp_server.logs = {"run-x7k2p-retry-system-container-impl-23": log}
    assert attach(kfp_server) == 1
    shown = capsys.readouterr().out
    assert "✗ round 1 - rollout" in shown
    assert "round 1 - rollout failed: rollout: no GPU memory; set rollout.batch_size lower\n" in shown
    assert shown.endswith("run r1: failed\n")


def test_without_a_line_of_error_the_exception_counts(kfp_server, capsys):
    kfp_server.states = [FAILED]
    kfp_server.logs = {
        "run-x7k2p-retry-system-container-impl-22": "Traceback ...\nKeyError: 'x'\nF0501 exit status 1\n"
    }
    assert attach(kfp_server) == 1
    assert "round 1 - rollout failed: KeyError: 'x'" in capsys.readouterr().out


def test_what_kfp_itself_says_of_a_task_goes_before_its_log(kfp_server, capsys):
    said = node("rollout", "FAILED") | {"error": {"code": 2, "message": "OOMKilled"}}
    kfp_server.states = [run("FAILED", said)]
    assert attach(kfp_server) == 1
    assert "round 1 - rollout failed: OOMKilled" in capsys.readouterr().out


def test_where_nobody_says_why_the_command_that_would_is_named(kfp_server, capsys):
    kfp_server.states = [FAILED]
    assert attach(kfp_server) == 1
    assert "kubectl logs -c main --prefix --tail=20 -l pipeline/runid=r1" in capsys.readouterr().out


def test_a_driver_that_failed_is_its_tasks_failure(kfp_server, capsys):
    kfp_server.states = [run("FAILED", node("rollout-driver", "FAILED"), node("rollout", None))]
    assert attach(kfp_server) == 1
    assert "round 1 - rollout failed: its driver did, so it never started" in capsys.readouterr().out


def test_a_success_with_a_failed_task_inside_is_none(kfp_server, capsys):
    kfp_server.states = [FAILED | {"state": "SUCCEEDED"}]
    assert attach(kfp_server) == 1
    assert capsys.readouterr().out.endswith("run r1: failed\n")


@pytest.mark.parametrize("state", ["CANCELED", "SKIPPED", "FAILED"])
def test_every_end_but_success_exits_with_1(kfp_server, state, capsys):
    kfp_server.states = [run(state, error={"code": 3, "message": "the workflow was too large"})]
    assert attach(kfp_server) == 1
    shown = capsys.readouterr().out
    assert f"run r1: {state.lower()}" in shown
    assert ("the workflow was too large" in shown) == (state == "FAILED")


def test_a_kfp_that_is_away_for_a_while_ends_nothing(kfp_server, capsys):
    kfp_server.states = [run("RUNNING", node("validate", "RUNNING")), run("SUCCEEDED", node("validate", "SUCCEEDED"))]
    seen = []

    def away_after_the_first(_):
        if not seen:
            kfp_server.refuse.extend([503, 502])
        seen.append(True)

    watching.time.sleep = away_after_the_first
    assert attach(kfp_server) == 0
    shown = capsys.readouterr().out
    assert shown.count("KFP does not answer; trying again") == 1
    assert "run r1: succeeded" in shown


def test_a_token_that_ran_out_ends_the_watch_in_one_line(kfp_server, capsys):
    kfp_server.states = [run("RUNNING")]
    watching.time.sleep = lambda _: kfp_server.refuse.append(401)
    assert attach(kfp_server) == 1
    error = capsys.readouterr().err
    assert "answered 401" in error
    assert "set KFP_TOKEN or --token-file" in error


def test_ending_the_watch_says_how_to_go_on_with_it(kfp_server, capsys):
    kfp_server.states = [run("RUNNING")]

    def interrupt(_):
        raise KeyboardInterrupt

    watching.time.sleep = interrupt
    assert attach(kfp_server) == 130
    assert f"burnish submit --host {kfp_server.host} --attach r1" in " ".join(capsys.readouterr().out.split())


def test_a_submitted_run_is_watched_when_asked(kfp_server, capsys):
    kfp_server.states = [run("SUCCEEDED", node("validate", "SUCCEEDED"))]
    with pytest.raises(SystemExit) as ended:
        main(["submit", "--host", kfp_server.host, "--watch", "name=demo", "rounds=1"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "✓ validate" in shown
    assert shown.index("started demo-") < shown.index("run r1: succeeded")


def test_iterations_of_a_loop_are_one_task_that_fails_with_any_of_them():
    one = [Task("rollout", "rollout")]
    now = datetime(2026, 5, 1, 10, 1, tzinfo=UTC)
    (running,) = progress_of(one, details(node("rollout", "SUCCEEDED"), node("rollout", "RUNNING")), now)
    assert (running.state, running.seconds, running.title) == ("running", 60.0, "rollout 1/2")
    (failed,) = progress_of(one, details(node("rollout", "RUNNING"), node("rollout", "FAILED")), now)
    assert failed.state == "failed"
    (done,) = progress_of(one, details(node("rollout", "SUCCEEDED", seconds=7), node("rollout", "SUCCEEDED")), now)
    assert (done.state, done.seconds) == ("done", 12.0)
    assert progress_of(one, [], now + timedelta(days=1)) == [Progress(one[0], "waiting")]


def test_the_live_dag_has_a_row_a_round():
    titles = ("validate", "evaluate - before", "round 1 - rollout", "round 1 - update", "evaluate - after")
    states = ("done", "done", "done", "running", "waiting")
    progress = [
        Progress(Task(title, title), state, None if state == "waiting" else 3.0)
        for title, state in zip(titles, states, strict=True)
    ]
    out = io.StringIO()
    Console(file=out, width=100).print(dag_table(progress))
    assert [" ".join(line.split()) for line in out.getvalue().splitlines()] == [
        "validate ✓ 3 s",
        "evaluate ✓ before 3 s · after",
        "round 1 ✓ rollout 3 s ▶ update 3 s",
    ]
