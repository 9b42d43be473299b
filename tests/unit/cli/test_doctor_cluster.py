"""`burnish doctor --cluster` against stand-ins for the KFP API and for Kubernetes, with the real clients of both."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from kfp_stand_in import FakeKfp, serve_kfp
from kubernetes.config import kube_config

from burnish.cli import doctor_services
from burnish.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[2] / "sandbox"))

from running_service import RunningService

CORE = "/api/v1/namespaces/rl"


def node(name, labels=None, taints=None, **allocatable):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": taints or []},
        "status": {"allocatable": allocatable},
    }


GPU_NODE = node("g1", cpu="31850m", memory="120Gi", **{"nvidia.com/gpu": "8"})


def named(name, **fields):
    return {"metadata": {"name": name}, **fields}


class FakeKubernetes:
    """Answers with what lies under a path; reviews of rights are asked of `forbidden`."""

    def __init__(self):
        self.refused = set()
        self.forbidden = set()
        self.reviews = []
        self.objects = {
            "/version/": {
                key: "1" if key in {"major", "minor"} else "v1.34.1"
                for key in (
                    "major", "minor", "gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler",
                    "platform",
                )
            },
            f"{CORE}/configmaps/burnish": named(
                "burnish", data={"BURNISH_STORE": "s3://b/p", "BURNISH_S3_ENDPOINT": "http://seaweed.rl.svc:8333"}
            ),
            f"{CORE}/secrets/burnish-store": named(
                "burnish-store", data={"AWS_ACCESS_KEY_ID": "a2V5", "AWS_SECRET_ACCESS_KEY": "c2VjcmV0"}
            ),
            f"{CORE}/secrets/mlpipeline-minio-artifact": named(
                "mlpipeline-minio-artifact", data={"accesskey": "YQ==", "secretkey": "Yg=="}
            ),
            "/api/v1/nodes": {"items": [node("c1", cpu="4", memory="16Gi"), GPU_NODE]},
            "/apis/node.k8s.io/v1/runtimeclasses": {"items": [named("gvisor", handler="runsc")]},
            "/apis/node.k8s.io/v1/runtimeclasses/gvisor": named("gvisor", handler="runsc"),
            "/apis/": {"groups": []},
        }  # fmt: skip
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, value = cluster.handle(self.command, self.path, body)
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def handle(self, method, path, body):
        if any(path.startswith(start) for start in self.refused):
            return 403, {"kind": "Status", "reason": "Forbidden"}
        if method == "POST" and path.endswith("accessreviews"):
            asked = body["spec"]["resourceAttributes"]
            self.reviews.append(body["spec"])
            right = (asked["verb"], asked["resource"])
            return 201, body | {"status": {"allowed": right not in self.forbidden}}
        assert method == "GET", "a doctor changes nothing in the cluster"
        return (200, self.objects[path]) if path in self.objects else (404, {"kind": "Status", "reason": "NotFound"})


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    one = FakeKubernetes()
    config = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "rl"}}],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{one.server.server_address[1]}"}}],
        "users": [{"name": "test", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
    for name in ("BURNISH_STORE", "BURNISH_S3_ENDPOINT", "MLFLOW_TRACKING_URI", "KFP_HOST", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    yield one
    one.server.shutdown()


@pytest.fixture
def doctor(capsys):
    def ask(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["doctor", "--cluster", *arguments])
        return ended.value.code, capsys.readouterr().out

    return ask


def test_a_cluster_where_all_is_in_place_has_no_failure(cluster, doctor):
    code, shown = doctor()
    assert code == 0, shown
    assert "✗" not in shown
    for line in (
        "✓ kube     Kubernetes v1.34.1, namespace rl",
        "✓ settings store s3://b/p, no MLflow",
        "✓ secret   burnish-store has AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY",
        "✓ root     minio://mlpipeline/v2/artifacts, with secret mlpipeline-minio-artifact",
        "✓ rights   service account pipeline-runner may do what a run's pods do",
        "✓ nodes    2 nodes, 8 nvidia.com/gpu; every stage fits one",
        "✓ runtime  no RuntimeClass is asked for; there are gvisor",
        "✓ mlflow   no MLFLOW_TRACKING_URI, so runs are not tracked",
        "? kfp      not checked: --host is not given and KFP_HOST is not set",
        "? bucket   not checked: BURNISH_STORE is not set;",
    ):
        assert line in shown
    assert "c2VjcmV0" not in shown


def test_without_a_cluster_its_checks_are_unchecked_and_no_failure(cluster, doctor, monkeypatch, tmp_path):
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "absent"))
    code, shown = doctor()
    assert code == 0
    assert "? kube     not checked: no cluster is configured" in shown


def test_an_api_server_that_is_gone_is_a_failure(cluster, doctor):
    cluster.server.shutdown()
    cluster.server.server_close()
    code, shown = doctor()
    assert code == 1
    assert "✗ kube     the Kubernetes API does not answer" in shown
    assert "fix: check KUBECONFIG" in shown


@pytest.mark.parametrize(
    ("path", "value", "problem", "fix"),
    [
        (f"{CORE}/configmaps/burnish", None, "ConfigMap burnish in namespace rl is missing", "helm install"),
        (f"{CORE}/configmaps/burnish", named("burnish"), "names no store", "set store.url"),
        (
            f"{CORE}/configmaps/burnish", named("burnish", data={"BURNISH_STORE": "s3://b"}), "no BURNISH_S3_ENDPOINT",
            "set store.endpoint",
        ),
        (
            f"{CORE}/secrets/burnish-store", None, "burnish-store is missing in namespace rl",
            "fix: kubectl create secret generic burnish-store -n rl --from-literal=AWS_ACCESS_KEY_ID=...",
        ),
        (
            f"{CORE}/secrets/burnish-store", named("burnish-store", data={"AWS_ACCESS_KEY_ID": "YQ=="}),
            "burnish-store lacks AWS_SECRET_ACCESS_KEY", "fix: kubectl delete secret burnish-store -n rl; kubectl",
        ),
        (
            f"{CORE}/secrets/burnish-sandbox", named("burnish-sandbox", data={"TOKEN": "YQ=="}),
            "burnish-sandbox lacks BURNISH_SANDBOX_TOKEN", "--from-literal=BURNISH_SANDBOX_TOKEN=...",
        ),
        (
            f"{CORE}/secrets/mlpipeline-minio-artifact", None,
            "root     minio://mlpipeline/v2/artifacts: mlpipeline-minio-artifact is missing", "accesskey=...",
        ),
        (
            f"{CORE}/configmaps/kfp-launcher", named("kfp-launcher", data={"defaultPipelineRoot": "/mnt/x"}),
            "pipeline root '/mnt/x' is not like s3://bucket/folder", "correct ConfigMap kfp-launcher",
        ),
        (
            f"{CORE}/configmaps/kfp-launcher",
            named("kfp-launcher", data={"defaultPipelineRoot": "s3://b/v2", "providers": "s3: [1, 2]"}),
            "cannot be understood", "kfpLauncher.enabled",
        ),
        ("/api/v1/nodes", {"items": [node("c1", cpu="4", memory="16Gi")]}, "none takes sft, rollout", "--placement"),
    ],
)  # fmt: skip
def test_each_thing_missing_is_a_failure_with_its_fix(cluster, doctor, path, value, problem, fix):
    if value is None:
        del cluster.objects[path]
    else:
        cluster.objects[path] = value
    code, shown = doctor()
    assert code == 1
    assert shown.count("✗") == 1
    assert problem in shown
    assert fix in shown[shown.index("✗") :]


def test_the_secret_of_a_providers_entry_is_the_one_looked_for(cluster, doctor):
    credentials = {"secretRef": {"secretName": "store", "accessKeyKey": "id", "secretKeyKey": "key"}}
    data = {
        "defaultPipelineRoot": "s3://b/v2",
        "providers": yaml.safe_dump({"s3": {"default": {"endpoint": "e", "credentials": credentials}}}),
    }
    cluster.objects[f"{CORE}/configmaps/kfp-launcher"] = named("kfp-launcher", data=data)
    assert "root     s3://b/v2: store is missing" in doctor()[1]
    cluster.objects[f"{CORE}/secrets/store"] = named("store", data={"id": "YQ==", "key": "YQ=="})
    code, shown = doctor()
    assert code == 0
    assert "✓ root     s3://b/v2, with secret store" in shown


def test_what_may_not_be_looked_at_is_unchecked(cluster, doctor):
    cluster.refused = {"/api/v1/nodes", f"{CORE}/secrets", "/apis/authorization.k8s.io/v1/subjectaccessreviews"}
    code, shown = doctor()
    assert code == 0
    assert "? nodes    not checked: you may not read nodes" in shown
    assert "? secret   not checked: you may not read secret burnish-store" in shown
    assert "? rights   not checked: you may not read the rights of pipeline-runner" in shown


def test_rights_are_asked_for_the_account_of_the_stages(cluster, doctor):
    cluster.forbidden = {("patch", "workflowtaskresults")}
    code, shown = doctor("--service-account", "trainer")
    assert code == 1
    assert "✗ rights   service account trainer may not patch workflowtaskresults.argoproj.io" in shown
    assert {review["user"] for review in cluster.reviews} == {"system:serviceaccount:rl:trainer"}
    assert "system:serviceaccounts:rl" in cluster.reviews[0]["groups"]


def test_sandboxes_of_the_clusters_own_need_their_api_their_rights_and_their_runtime(cluster, doctor):
    cluster.forbidden = {("delete", "sandboxes")}
    code, shown = doctor("execute.backend=kubernetes", "execute.runtime=kata", "execute.namespace=box")
    assert code == 1
    assert "may not delete sandboxes.agents.x-k8s.io" in shown
    assert "rbac.agentSandbox" in shown
    assert "there is no RuntimeClass kata" in shown
    assert "the cluster does not serve agents.x-k8s.io" in shown
    places = {
        review["resourceAttributes"]["resource"]: review["resourceAttributes"]["namespace"]
        for review in cluster.reviews
    }
    assert (places["sandboxes"], places["configmaps"]) == ("box", "rl")
    version = {"groupVersion": "agents.x-k8s.io/v1beta1", "version": "v1beta1"}
    group = {"name": "agents.x-k8s.io", "versions": [version], "preferredVersion": version}
    cluster.objects["/apis/"] = {"groups": [group]}
    cluster.forbidden = set()
    code, shown = doctor("execute.backend=kubernetes", "execute.runtime=gvisor")
    assert code == 0, shown


def test_nodes_count_with_taints_labels_and_what_the_placement_asks_for(cluster, doctor, tmp_path):
    taint = {"key": "team", "value": "rl", "effect": "NoSchedule"}
    room = {"cpu": "32", "memory": "200Gi", "nvidia.com/gpu": "4"}
    cluster.objects["/api/v1/nodes"] = {"items": [node("g1", {"pool": "a"}, [taint], **room)]}
    code, shown = doctor()
    assert code == 1
    assert "none takes validate, sft" in shown
    placement = {"every_stage": {"tolerations": [{"key": "team", "value": "rl"}], "node_selector": {"pool": "a"}}}
    (tmp_path / "placement.yaml").write_text(yaml.safe_dump(placement))
    code, shown = doctor("--placement", str(tmp_path / "placement.yaml"))
    assert code == 0, shown
    assert "1 nodes, 4 nvidia.com/gpu; every stage fits one" in shown
    placement["every_stage"]["cache_claim"] = "cache"
    (tmp_path / "placement.yaml").write_text(yaml.safe_dump(placement))
    assert "PersistentVolumeClaim cache is missing" in doctor("--placement", str(tmp_path / "placement.yaml"))[1]


def test_without_gpus_a_run_on_cpu_still_fits(cluster, doctor):
    cluster.objects["/api/v1/nodes"] = {"items": [node("c1", cpu="16", memory="64Gi")]}
    assert doctor()[0] == 1
    code, shown = doctor("--cpu")
    assert code == 0
    assert "no GPU asked for; every stage fits one" in shown


def test_kfp_is_asked_for_runs(cluster, doctor):
    with serve_kfp() as server:
        code, shown = doctor("--host", server.host)
        assert code == 0
        assert f"✓ kfp      {server.host}: single-user, lists runs" in shown
        server.multi_user = True
        code, shown = doctor("--host", server.host)
        assert code == 1
        assert "is multi-user and needs a namespace" in shown
        code, shown = doctor("--host", server.host, "--namespace", "rl")
        assert code == 0, shown
        assert "namespace=rl" in server.listed[-1]
        assert "service account default-editor may do" in shown
        assert "you may submit in namespace rl" in shown
        cluster.forbidden = {("create", "runs")}
        code, shown = doctor("--host", server.host, "--namespace", "rl")
        assert code == 1
        assert "you may not create runs.pipelines.kubeflow.org in namespace rl" in shown


def test_a_token_that_kfp_refuses_is_named(cluster, doctor):
    with serve_kfp() as server:
        server.refuse = [401] * 2
        code, shown = doctor("--host", server.host)
    assert code == 1
    assert "answered 401" in shown
    assert "set KFP_TOKEN or --token-file" in shown


def test_the_bucket_is_tried_with_all_four_rights(cluster, doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    code, shown = doctor()
    assert code == 0
    assert "may put, get, list, delete" in shown
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_right_that_the_bucket_lacks_is_named(cluster, doctor, monkeypatch, tmp_path):
    from burnish.contracts.errors import StoreError
    from burnish.store.folder import FolderBackend

    def refuse(self, keys):
        raise StoreError("access denied")

    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(FolderBackend, "delete", refuse)
    code, shown = doctor()
    assert code == 1
    assert "✗ bucket   cannot delete: access denied" in shown
    assert "fix: let the key in burnish-store delete in" in shown
    assert "may put, get, list" in shown


def test_names_of_the_cluster_are_unchecked_outside_of_it(cluster, doctor, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", "s3://bucket")
    monkeypatch.setenv("BURNISH_S3_ENDPOINT", "http://seaweed.rl.svc.invalid:8333")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.rl.svc.invalid:5000")
    code, shown = doctor("execute.backend=service", "execute.service_url=http://sandbox.rl.svc.invalid:8000")
    assert code == 0, shown
    for subject, host in (("bucket", "seaweed"), ("sandbox", "sandbox"), ("mlflow", "mlflow")):
        assert f"? {subject:<8} not checked: {host}.rl.svc.invalid is not known outside of the cluster" in shown


def test_mlflow_is_found_by_the_charts_settings_and_its_password_stays_hidden(cluster, doctor):
    settings = cluster.objects[f"{CORE}/configmaps/burnish"]["data"]
    settings["MLFLOW_TRACKING_URI"] = "http://user:hush@127.0.0.1:9"
    code, shown = doctor()
    assert code == 1
    assert "✗ mlflow   http://127.0.0.1:9 does not answer" in shown
    health = ThreadingHTTPServer(("127.0.0.1", 0), type("Health", (FakeKfp,), {"do_GET": lambda one: one.reply({})}))
    threading.Thread(target=health.serve_forever, args=(0.02,), daemon=True).start()
    settings["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{health.server_port}"
    code, shown = doctor()
    health.shutdown()
    assert code == 0
    assert "answers" in shown


def answering(**replies):
    """A server that answers paths, given with _ for /, with status and JSON; the token it was shown is kept."""

    class Handler(FakeKfp):
        def do_GET(self):
            self.server.shown = self.headers.get("Authorization")
            status, value = replies.get(self.path.strip("/").replace("/", "_"), (404, {}))
            self.reply(value, status)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        (
            (200, {"state": "ready", "policy": "ab" * 32, "policy_version": 3, "failure": None}),
            "✓ rollout  URL: ready, policy version 3 (abababababab)",
        ),
        (
            (200, {"state": "empty", "policy": None, "policy_version": None, "failure": None}),
            "✓ rollout  URL: empty, no policy yet",
        ),
        (
            (200, {"state": "empty", "policy": None, "policy_version": None, "failure": {"reason": "out of memory"}}),
            "✗ rollout  URL: the last policy could not be loaded: out of memory",
        ),
        ((401, {}), "✗ rollout  URL does not take the token"),
        ((404, {}), "✗ rollout  URL/burnish/version answers 404"),
    ],
)
def test_a_rollout_server_says_which_policy_it_holds(cluster, doctor, monkeypatch, version, shown):
    monkeypatch.setenv("BURNISH_ROLLOUT_TOKEN", "hush")
    server = answering(readyz=(200, {}), burnish_version=version)
    url = f"http://127.0.0.1:{server.server_port}"
    code, said = doctor("rollout.engine=endpoint", f"rollout.endpoint.url={url}")
    server.shutdown()
    assert shown.replace("URL", url) in said
    assert code == ("✗" in shown)
    assert (server.shown, "hush" in said) == ("Bearer hush", False)


def test_a_rollout_server_that_is_not_there_is_a_failure_with_its_fix(cluster, doctor):
    code, shown = doctor("rollout.engine=endpoint", "rollout.endpoint.url=http://127.0.0.1:9")
    assert code == 1
    assert "✗ rollout  http://127.0.0.1:9/readyz does not answer" in shown
    assert "and rollout.endpoint.url" in shown


def test_the_exporter_is_asked_where_the_chart_installed_one(cluster, doctor, monkeypatch):
    assert "✓ exporter none (exporter.enabled), so Prometheus hears nothing of runs" in doctor()[1]
    found = {"metadata": {"name": "burnish-exporter"}, "spec": {"ports": [{"port": 9095}]}}
    query = "labelSelector=app.kubernetes.io%2Fpart-of%3Dburnish%2Capp.kubernetes.io%2Fcomponent%3Dexporter"
    cluster.objects[f"{CORE}/services?{query}"] = {"items": [found]}
    code, shown = doctor()
    assert (code, "? exporter not checked: burnish-exporter.rl.svc is not known" in shown) == (0, True)
    monkeypatch.setattr(doctor_services, "hidden", lambda url: None)
    asked = []
    monkeypatch.setattr(doctor_services, "get_problem", lambda url: asked.append(url) or "answers 503")
    code, shown = doctor()
    assert (code, asked) == (1, ["http://burnish-exporter.rl.svc:9095/readyz"])
    assert "fix: see kubectl logs deployment/burnish-exporter -n rl; its secret must be allowed to list and" in shown
    monkeypatch.setattr(doctor_services, "get_problem", lambda url: None)
    assert "✓ exporter http://burnish-exporter.rl.svc:9095 has read the store" in doctor()[1]


def service(url):
    return SimpleNamespace(execute=SimpleNamespace(service_url=url))


def test_a_sandbox_that_works_stops_what_tries_to_get_out(monkeypatch):
    monkeypatch.setenv("BURNISH_SANDBOX_TOKEN", "t0ken")
    with RunningService(token="t0ken") as running:
        finding = doctor_services.check_sandbox_service(service(running.url))
    assert finding.fix is None
    assert "ready, runs a program, and stopped 4 of 4" in finding.detail


def test_a_sandbox_with_another_token_is_named(monkeypatch):
    monkeypatch.setenv("BURNISH_SANDBOX_TOKEN", "wrong")
    with RunningService(token="t0ken") as running:
        finding = doctor_services.check_sandbox_service(service(running.url))
    assert "wants another token" in finding.detail
    assert finding.fix


def test_a_program_that_gets_out_is_a_failure(monkeypatch):
    monkeypatch.delenv("BURNISH_SANDBOX_TOKEN", raising=False)
    # What passes here is harmless, as if the sandbox had let it.
    monkeypatch.setattr(doctor_services, "_ATTACKS", {"leaves": "def f(x): return 1"})
    with RunningService() as running:
        finding = doctor_services.check_sandbox_service(service(running.url))
    assert "a program leaves" in finding.detail
    assert "run no model-written code there" in finding.fix


def test_a_sandbox_that_is_away_is_a_failure():
    finding = doctor_services.check_sandbox_service(service("http://127.0.0.1:9"))
    assert "readyz does not answer" in finding.detail
    assert "execute.service_url" in finding.fix


def test_the_pod_that_checks_from_inside_is_valid_restricted_and_has_what_stages_have(cluster, doctor, tmp_path):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    (tmp_path / "placement.yaml").write_text(yaml.safe_dump({"registry": "r.example/b", "tag": "1.2"}))
    code, shown = doctor(
        "--pod", "--host", "http://kfp:8888", "--namespace", "rl", "--placement", str(tmp_path / "placement.yaml"),
        "execute.backend=service", "execute.service_url=http://sandbox:8000",
    )  # fmt: skip
    assert code == 0
    pod = yaml.safe_load(shown)
    kubernetes_validate.validate(pod, "1.34", strict=True)
    assert pod["metadata"]["namespace"] == "rl"
    assert pod["spec"]["serviceAccountName"] == "default-editor"
    assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "r.example/b/validate:1.2"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["command"][3:] == [
        "doctor", "--cluster", "execute.backend=service", "execute.service_url=http://sandbox:8000", "--namespace=rl",
    ]  # fmt: skip
    sources = [next(iter(source.values()))["name"] for source in container["envFrom"]]
    assert sources == ["burnish", "burnish-store", "burnish-sandbox", "burnish-rollout"]


def test_in_a_pod_its_own_account_is_asked_about(cluster, doctor, monkeypatch, tmp_path):
    (tmp_path / "namespace").write_text("rl")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr("burnish.cli.kube._NAMESPACE_FILE", tmp_path / "namespace")
    monkeypatch.setattr("kubernetes.config.load_incluster_config", kube_config.load_kube_config)
    cluster.forbidden = {("get", "secrets")}
    code, shown = doctor()
    assert code == 1
    assert "this pod's account may not get secrets mlpipeline-minio-artifact" in shown
    assert all("user" not in review for review in cluster.reviews)
