"""`burnish submit` against a small stand-in for the KFP API, over real HTTP with the real KFP client."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

import pytest
import yaml

from burnish.cli.main import main


class FakeKfp(BaseHTTPRequestHandler):
    """Keeps pipelines, versions, experiments and runs in memory; enough of v2beta1 for the client's calls."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = urlparse(self.path).path
        server = self.server
        if path.endswith("/healthz"):
            self.reply({"multi_user": False})
        elif re.search(r"/pipelines/[^/]+/versions$", path):
            self.reply({"pipeline_versions": server.versions})
        elif path.endswith("/pipelines"):
            self.reply({"pipelines": server.pipelines})
        elif path.endswith("/experiments"):
            self.reply({"experiments": server.experiments})
        else:
            self.reply({"error": f"no such path {path}"}, 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        path = urlparse(self.path).path
        server = self.server
        server.tokens.append(self.headers.get("Authorization"))
        if path.endswith("/pipelines"):
            server.pipelines.append({"pipeline_id": "p1", **json.loads(body)})
            self.reply(server.pipelines[-1])
        elif path.endswith("/pipelines/upload_version"):
            server.uploads.append(body)
            name = re.search(r"[?&]name=([^&]+)", self.path).group(1)
            server.versions.append(
                {"pipeline_id": "p1", "pipeline_version_id": f"v{len(server.versions)}", "display_name": name}
            )
            self.reply(server.versions[-1])
        elif path.endswith("/experiments"):
            server.experiments.append({"experiment_id": "e1", "display_name": json.loads(body)["display_name"]})
            self.reply(server.experiments[-1])
        elif path.endswith("/runs"):
            server.runs.append(json.loads(body))
            self.reply({"run_id": "r1", **server.runs[-1]})
        else:
            self.reply({"error": f"no such path {path}"}, 404)

    def reply(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def kfp_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeKfp)
    server.pipelines, server.versions, server.experiments, server.runs, server.uploads = [], [], [], [], []
    server.tokens = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


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
