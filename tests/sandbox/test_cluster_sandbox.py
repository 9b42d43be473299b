"""Sandboxes of the cluster's own, against a stand-in for the API server whose controller starts a real service."""

import json
import threading
import time
from datetime import datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from running_service import GOOD, SPEC, RunningService

from burnish.contracts.errors import StageError
from burnish.contracts.execution import ExecuteConfig
from sandbox.jobs import Job

kubernetes = pytest.importorskip("kubernetes")
import kubernetes.client as client  # noqa: E402

from burnish.rewards.backends import kubernetes as backend_module  # noqa: E402
from burnish.rewards.backends.kubernetes import KubernetesBackend  # noqa: E402

CONFIG = ExecuteConfig(backend="kubernetes", namespace="rl", workers=2, runtime="gvisor", preload=["numpy"])


class Cluster:
    """Serves agents.x-k8s.io as far as the backend uses it."""

    def __init__(self, groups=("agents.x-k8s.io",), ready=True, forbidden=False, ahead_s=0.0):
        self.groups, self.ready, self.forbidden = groups, ready, forbidden
        self.resources, self.seen, self.service = {}, [], None
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, answer = cluster.handle(self.command, self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = answer

            def date_time_string(self, timestamp=None):
                return formatdate(time.time() + ahead_s, usegmt=True)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def handle(self, method, path, body):
        self.seen.append((method, path, body))
        if path == "/apis/":
            version = {"groupVersion": "agents.x-k8s.io/v1beta1", "version": "v1beta1"}
            groups = [{"name": name, "versions": [version], "preferredVersion": version} for name in self.groups]
            return 200, {"kind": "APIGroupList", "groups": groups}
        if self.forbidden:
            return 403, {"kind": "Status", "reason": "Forbidden"}
        base = "/apis/agents.x-k8s.io/v1beta1/namespaces/rl/sandboxes"
        if (method, path) == ("POST", base):
            self.resources[body["metadata"]["name"]] = body
            if self.ready:
                (container,) = body["spec"]["podTemplate"]["spec"]["containers"]
                (token,) = [entry["value"] for entry in container["env"]]
                self.service = RunningService(token=token)
                backend_module.PORT = self.service.port
            return 201, body
        name = path.removeprefix(base + "/")
        if name not in self.resources:
            return 404, {"kind": "Status", "reason": "NotFound"}
        if method == "DELETE":
            if self.service:
                self.service.process.kill()
            return 200, self.resources.pop(name)
        if method == "PATCH":
            self.resources[name]["spec"] |= body["spec"]
        if self.ready:
            ready = {"type": "Ready", "status": "True", "reason": "DependenciesReady"}
            status = {"serviceFQDN": "127.0.0.1", "conditions": [ready]}
        else:
            waiting = {"type": "Ready", "status": "False", "message": "Pod is Pending: no image"}
            status = {"conditions": [waiting]}
        return 200, self.resources[name] | {"status": status}


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Makes a cluster and points the client's configuration at it."""
    made = []

    def make(**settings):
        made.append(Cluster(**settings))
        address = f"http://127.0.0.1:{made[-1].server.server_address[1]}"
        file = tmp_path / "kubeconfig"
        config = {
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": address}}],
            "users": [{"name": "test", "user": {"token": "t"}}],
        }
        file.write_text(yaml.safe_dump(config))
        monkeypatch.setattr(kubernetes.config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
        monkeypatch.setattr(backend_module, "PORT", 8000)
        return made[-1]

    yield make
    for one in made:
        one.server.shutdown()
        if one.service:
            one.service.__exit__()


def test_a_sandbox_is_made_used_renewed_and_deleted(cluster, monkeypatch):
    one = cluster()
    backend = KubernetesBackend(CONFIG)
    for number in range(20):
        backend.submit(Job(f"j{number}", GOOD, SPEC))
    found = {}
    monkeypatch.setattr(backend_module, "_RENEW_S", 0.0)
    while len(found) < 20:
        found |= dict(backend.collect())
    assert {result.verdicts for result in found.values()} == {("passed", "passed")}
    backend.close()
    assert one.resources == {}
    assert "PATCH" in [method for method, _, _ in one.seen]
    assert one.service.process.wait(10) is not None


@pytest.mark.parametrize("ahead_s", [0.0, 7200.0, -7200.0])
def test_a_sandbox_lives_for_an_hour_of_the_cluster_s_clock(cluster, ahead_s):
    one = cluster(ahead_s=ahead_s)
    KubernetesBackend(CONFIG).close()
    (resource,) = [body for method, _, body in one.seen if method == "POST"]
    ends = datetime.fromisoformat(resource["spec"]["shutdownTime"]).timestamp()
    assert ends - (time.time() + ahead_s) == pytest.approx(3600, abs=60)


def test_the_pod_asked_for_is_shut_off_and_goes_when_nobody_renews_it(cluster):
    one = cluster()
    KubernetesBackend(CONFIG).close()
    (resource,) = [body for method, _, body in one.seen if method == "POST"]
    assert (resource["apiVersion"], resource["kind"]) == ("agents.x-k8s.io/v1beta1", "Sandbox")
    assert resource["spec"]["shutdownPolicy"] == "Delete"
    assert resource["spec"]["shutdownTime"].endswith("Z")
    pod = resource["spec"]["podTemplate"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["runtimeClassName"] == "gvisor"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert container["args"] == ["--host=0.0.0.0", "--port=8000", "--workers=2", "--preload=numpy"]
    assert container["image"].startswith("burnish/sandbox:")
    assert wrong_names(pod, client.V1PodSpec) == []


def wrong_names(given, model):
    """Fields of `given` that Kubernetes does not know."""
    known = {name: model.openapi_types[field] for field, name in model.attribute_map.items()}
    found = [f"{model.__name__}.{name}" for name in given if name not in known]
    for name, value in given.items():
        kind = known.get(name, "").removeprefix("list[").removesuffix("]")
        inner = getattr(client, kind, None)
        for one in value if isinstance(value, list) else [value]:
            if inner is not None and isinstance(one, dict):
                found += wrong_names(one, inner)
    return found


def test_a_cluster_without_agent_sandbox_is_one_line_that_says_what_to_install(cluster):
    cluster(groups=("apps",))
    with pytest.raises(StageError, match=r"does not serve agents\.x-k8s\.io; install agent-sandbox"):
        KubernetesBackend(CONFIG)


def test_missing_rights_are_named(cluster):
    cluster(forbidden=True)
    with pytest.raises(StageError, match=r"cannot create sandboxes\.agents\.x-k8s\.io in namespace 'rl': 403"):
        KubernetesBackend(CONFIG)


def test_a_sandbox_that_never_gets_ready_is_deleted_and_its_reason_shown(cluster):
    one = cluster(ready=False)
    with pytest.raises(StageError, match=r"not ready after 1 s \(it says: Pod is Pending: no image\)"):
        KubernetesBackend(CONFIG, ready_s=1)
    assert one.resources == {}


def test_no_cluster_at_all_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(kubernetes.config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "absent"))
    with pytest.raises(StageError, match="no cluster is configured"):
        KubernetesBackend(CONFIG)
