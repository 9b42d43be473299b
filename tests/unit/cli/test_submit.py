"""`burnish submit` against a small stand-in for the KFP API, over real HTTP with the real KFP client."""

import json

import pytest
import yaml
from kfp_stand_in import serve_kfp

from burnish.cli.main import main


@pytest.fixture
def kfp_server():
    with serve_kfp() as server:
        yield server


def submit(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["submit", *arguments])
    return caught.value.code


def test_submit_uploads_the_ir_once_and_starts_a_run_each_time(kfp_server, capsys):
    host = f"http://127.0.0.1:{kfp_server.server_port}"
    for _ in range(2):
        assert submit("--host", host, "name=demo", "rounds=1") == 0
    assert len(kfp_server.runs) == 2
    assert len(kfp_server.versions) == 1, "the same IR must not become a second version"
    run = kfp_server.runs[0]
    assert run["experiment_id"] == "e1"
    assert run["pipeline_version_reference"] == {"pipeline_id": "p1", "pipeline_version_id": "v0"}
    assert run["runtime_config"]["parameters"]["run_id"].startswith("demo-")
    assert b"burnish/rollout:" in kfp_server.uploads[0]
    assert f"{host}/#/runs/details/r1" in capsys.readouterr().out


def test_upload_only_adds_a_version_when_the_ir_changed_and_starts_nothing(kfp_server, capsys):
    host = f"http://127.0.0.1:{kfp_server.server_port}"
    for overrides in (["rounds=1"], ["rounds=1"], ["rounds=2"]):
        assert submit("--host", host, "--upload-only", "name=demo", *overrides) == 0
    assert not kfp_server.runs
    assert not kfp_server.experiments
    assert [pipeline["display_name"] for pipeline in kfp_server.pipelines] == ["burnish-demo"]
    first, second = (version["display_name"] for version in kfp_server.versions)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("burnish-demo:")]
    assert lines == [
        f"burnish-demo: version {first} uploaded",
        f"burnish-demo: version {first} is there already",
        f"burnish-demo: version {second} uploaded",
    ]


def test_a_run_has_the_service_account_that_is_asked_for(kfp_server):
    host = f"http://127.0.0.1:{kfp_server.server_port}"
    for asked in ([], ["--service-account", "trainer"]):
        assert submit("--host", host, *asked, "name=demo", "rounds=1") == 0
    assert [run.get("service_account") for run in kfp_server.runs] == [None, "trainer"]


def test_a_private_pipeline_is_made_in_its_namespace_with_the_pods_own_token(kfp_server, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("of-the-pod")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    host = f"http://127.0.0.1:{kfp_server.server_port}"
    assert submit("--host", host, "--namespace", "team", "--upload-only", "name=demo", "rounds=1") == 0
    assert kfp_server.pipelines[0]["namespace"] == "team"
    assert set(kfp_server.tokens) == {"Bearer of-the-pod"}


def test_a_dry_run_shows_the_request_and_sends_nothing(kfp_server, capsys):
    host = f"http://127.0.0.1:{kfp_server.server_port}"
    assert submit("--host", host, "--dry-run", "name=demo", "rounds=1") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["pipeline"] == "burnish-demo"
    assert shown["ir_bytes"] > 10_000
    assert not kfp_server.runs
    assert not kfp_server.uploads


def test_no_host_is_one_line(capsys, monkeypatch):
    monkeypatch.delenv("KFP_HOST", raising=False)
    assert submit("name=demo") == 1
    assert "KFP_HOST is not set" in capsys.readouterr().err


def test_a_host_that_does_not_answer_is_one_line(capsys):
    assert submit("--host", "http://127.0.0.1:9", "name=demo", "rounds=1") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: KFP at http://127.0.0.1:9")
    assert error.count("\n") == 1


def test_compile_writes_the_ir_and_says_how_large_it_is(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["compile", "name=demo", "rounds=1", "-o", str(tmp_path / "ir.yaml"), "--tag", "9.9", "--cpu"])
    assert caught.value.code == 0
    pipeline, _ = yaml.safe_load_all((tmp_path / "ir.yaml").read_text())
    images = {executor["container"]["image"] for executor in pipeline["deploymentSpec"]["executors"].values()}
    assert "burnish/update:9.9" in images
    assert "accelerator" not in (tmp_path / "ir.yaml").read_text()
    assert f"10 tasks, {(tmp_path / 'ir.yaml').stat().st_size} bytes" in capsys.readouterr().out
