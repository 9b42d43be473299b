"""What the chart renders from several sets of values: objects that a cluster takes, pods fit for a restricted one."""

import functools
import re

import pytest
import yaml
from rendered_chart import CHART, VALUE_SETS, HelmError, containers, pods

# Objects of operators, whose schemas are not Kubernetes' own.
FOREIGN = {("monitoring.coreos.com/v1", "ServiceMonitor"), ("monitoring.coreos.com/v1", "PrometheusRule")}
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.fixture(scope="module")
def validate():
    """Raises on an object that a Kubernetes release does not take; strict about unknown fields."""
    schemas = pytest.importorskip("kubernetes_validate")
    # The definitions are megabytes, and are read anew for every object.
    schemas.utils.schema_contents = functools.cache(schemas.utils.schema_contents)
    return functools.partial(schemas.validate, strict=True)


@pytest.mark.parametrize("name", VALUE_SETS)
def test_helm_finds_nothing_to_complain_about(helm, name):
    values = [f"--values={VALUE_SETS[name]}"] if VALUE_SETS[name] else []
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), *values)


@pytest.mark.parametrize("release", ["1.28", "1.37"])
def test_kubernetes_takes_every_object(objects, validate, release):
    for item in objects:
        if (item["apiVersion"], item["kind"]) not in FOREIGN:
            validate(item, release)


def test_foreign_objects_are_made_only_on_demand(render):
    assert not [item for item in render() if (item["apiVersion"], item["kind"]) in FOREIGN]
    assert {(item["apiVersion"], item["kind"]) for item in render("everything")} >= FOREIGN


def test_no_two_objects_have_one_name(objects):
    keys = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(set(keys)) == len(keys)


def test_names_and_labels_are_such_as_kubernetes_allows(objects):
    for item in objects:
        assert DNS_LABEL.fullmatch(item["metadata"]["name"]), item["metadata"]["name"]
    labelled = [item["metadata"] for item in objects] + [metadata for _, metadata, _ in pods(objects)]
    for metadata in labelled:
        for key, value in metadata["labels"].items():
            assert LABEL_NAME.fullmatch(key), key
            assert LABEL_VALUE.fullmatch(value), (key, value)


def test_a_long_release_name_still_makes_legal_names(helm):
    text = helm("template", "r" * 53, str(CHART), f"--values={VALUE_SETS['everything']}", "--set=fullnameOverride=")
    for item in filter(None, yaml.safe_load_all(text)):
        assert DNS_LABEL.fullmatch(item["metadata"]["name"]), item["metadata"]["name"]


def test_every_object_and_pod_carries_the_common_labels(render):
    objects = render("everything")
    labelled = [item["metadata"] for item in objects] + [metadata for _, metadata, _ in pods(objects)]
    for metadata in labelled:
        assert metadata["labels"]["team"] == "post-training"
        assert metadata["labels"]["app.kubernetes.io/instance"] == "burnish"


def test_selectors_find_exactly_their_own_pods(objects):
    found = {name: metadata["labels"] for name, metadata, _ in pods(objects)}

    def selected(wanted):
        return {name for name, labels in found.items() if wanted.items() <= labels.items()}

    checked = set()
    for item in objects:
        name, spec = item["metadata"]["name"], item.get("spec", {})
        if item["kind"] in {"Deployment", "PodDisruptionBudget"}:
            assert selected(spec["selector"]["matchLabels"]) == {name}
        elif item["kind"] == "Service":
            assert selected(spec["selector"]) == {name}
        elif item["kind"] == "NetworkPolicy" and "agent-sandbox" not in name:
            assert selected(spec["podSelector"]["matchLabels"]) == {name}
        elif item["kind"] == "HorizontalPodAutoscaler":
            assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
            assert name in found
        else:
            continue
        checked.add(item["kind"])
    assert checked or not found


def test_services_and_probes_name_ports_that_the_pod_has(objects):
    ports = {}
    for name, _, pod in pods(objects):
        for container in containers(pod):
            named = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            ports[name] = named
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    assert container[probe]["httpGet"]["port"] in named
            for argument in container.get("args", []):
                if argument.startswith("--port="):
                    assert int(argument.removeprefix("--port=")) in named.values()
    for item in objects:
        if item["kind"] == "Service":
            for port in item["spec"]["ports"]:
                assert port["targetPort"] in ports[item["metadata"]["name"]]
        elif item["kind"] == "NetworkPolicy":
            for rule in item["spec"]["ingress"]:
                assert rule["ports"], "an ingress rule without ports opens all of them"


def test_every_pod_may_run_at_the_restricted_level(objects):
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted, and a read-only root."""
    for name, _, pod in pods(objects):
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security.get("runAsUser") != 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & pod.keys(), name
        for volume in pod.get("volumes", []):
            assert len(volume.keys() & {"configMap", "emptyDir", "projected", "secret", "persistentVolumeClaim"}) == 1
        for container in containers(pod):
            inner = container["securityContext"]
            assert inner["allowPrivilegeEscalation"] is False, name
            assert inner["readOnlyRootFilesystem"] is True, name
            assert inner["capabilities"] == {"drop": ["ALL"]}, name
            assert not {"privileged", "procMount", "runAsUser", "runAsNonRoot", "seccompProfile"} & inner.keys(), name
            assert not [port for port in container.get("ports", []) if "hostPort" in port], name


def test_a_cluster_may_assign_the_users_itself(render):
    users = [f"--set=podSecurityContext.{name}=null" for name in ("runAsUser", "runAsGroup", "fsGroup")]
    for _, _, pod in pods(render("everything", *users)):
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_no_pod_gets_a_token_of_the_cluster(objects):
    accounts = {item["metadata"]["name"]: item for item in objects if item["kind"] == "ServiceAccount"}
    for account in accounts.values():
        assert account["automountServiceAccountToken"] is False
    for _, _, pod in pods(objects):
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["serviceAccountName"] in accounts
        for volume in pod.get("volumes", []):
            for source in volume.get("projected", {}).get("sources", []):
                # A token for KFP is of no use at the cluster's own API.
                assert source["serviceAccountToken"]["audience"] == "pipelines.kubeflow.org"


def test_every_container_says_what_it_needs_in_legal_quantities(objects):
    for name, _, pod in pods(objects):
        for container in containers(pod):
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys(), name
            assert "memory" in resources["limits"], name
            for group in resources.values():
                for resource, quantity in group.items():
                    assert QUANTITY.fullmatch(str(quantity)), f"{name}: {resource} {quantity}"
        for volume in pod.get("volumes", []):
            if "emptyDir" in volume:
                assert QUANTITY.fullmatch(volume["emptyDir"]["sizeLimit"]), name
    for item in objects:
        if item["kind"] == "PersistentVolumeClaim":
            assert QUANTITY.fullmatch(item["spec"]["resources"]["requests"]["storage"])
            assert item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_images_have_a_fixed_tag_or_a_digest(objects):
    for name, _, pod in pods(objects):
        for container in containers(pod):
            image = container["image"]
            assert re.fullmatch(r"[^\s:@]+(:[\w.-]+|@sha256:[0-9a-f]{64})", image), f"{name}: {image}"
            assert not image.endswith(":latest"), name


def test_registry_tag_digest_and_pull_settings_reach_every_pod(render):
    objects = render("everything")
    images = {name: container["image"] for name, _, pod in pods(objects) for container in containers(pod)}
    assert images == {
        "rl-sandbox": "registry.example.com/team/burnish/sandbox@sha256:" + "0123456789abcdef" * 4,
        "rl-test-sandbox": "registry.example.com/team/burnish/sandbox@sha256:" + "0123456789abcdef" * 4,
        "rl-rollout-server": "registry.example.com/team/burnish/server:1.2.3",
        "rl-exporter": "registry.example.com/team/burnish/exporter:1.2.3",
        "rl-pipeline-upload": "registry.example.com/team/burnish/validate:1.2.3",
        "rl-seaweedfs": "docker.io/chrislusf/seaweedfs:4.48",
        "rl-mlflow": "ghcr.io/mlflow/mlflow:v3.17.2",
    }
    for _, _, pod in pods(objects):
        assert pod["imagePullSecrets"] == [{"name": "registry-login"}]
        assert {container["imagePullPolicy"] for container in containers(pod)} == {"Always"}


def test_scheduling_and_environment_reach_the_sandbox(render):
    given = yaml.safe_load(VALUE_SETS["everything"].read_text())["sandbox"]
    (pod,) = (spec for name, _, spec in pods(render("everything")) if name == "rl-sandbox")
    for key in ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName"):
        assert pod[key] == given[key]
    assert pod["runtimeClassName"] == "gvisor"
    assert given["extraEnv"][0] in pod["containers"][0]["env"]
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "4Gi", "medium": "Memory"}}]


def test_no_secret_is_made_and_none_is_written_out(objects):
    assert not [item for item in objects if item["kind"] == "Secret"]
    secret = re.compile(r"TOKEN$|SECRET|PASSWORD|ACCESS_KEY", re.IGNORECASE)
    for _, _, pod in pods(objects):
        for container in containers(pod):
            for variable in container.get("env", []):
                if secret.search(variable["name"]):
                    assert set(variable) == {"name", "valueFrom"}
                    assert set(variable["valueFrom"]) == {"secretKeyRef"}
    for item in objects:
        if item["kind"] == "ConfigMap":
            assert not [key for key in item["data"] if secret.search(key)]


def test_what_cannot_work_is_refused_with_its_name(render):
    for arguments, message in {
        ("--set=kfpLauncher.enabled=true", "--set=kfpLauncher.pipelineRoot=s3://b/p"): "store.endpoint is needed",
        ("--set=pipelineUpload.pipelines=null",): "pipelines",
        tuple(
            f"--set=pipelineUpload.pipelines.{name}=null" for name in ("quickstart", "ppo", "code")
        ): "pipelineUpload.pipelines is empty",
    }.items():
        with pytest.raises(HelmError, match=message):
            render("defaults", *arguments)


@pytest.mark.parametrize(
    ("name", "told", "kept_quiet"),
    [
        (
            "defaults",
            ["runs have no store", "tracking.uri is not set", "helm test burnish", "burnish-quickstart"],
            ["dev"],
        ),
        ("minimal", ["secret burnish-store"], ["WARNING", "sandbox", "KFP's UI"]),
        (
            "everything",
            ["development services are on", "rollout.endpoint.url=http://rl-rollout-server.runs.svc:8000"],
            ["no store", "is not set"],
        ),
    ],
)
def test_the_notes_say_what_is_missing_and_what_to_do_next(helm, name, told, kept_quiet):
    values = [f"--values={VALUE_SETS[name]}"] if VALUE_SETS[name] else []
    text = helm("install", "burnish", str(CHART), "--namespace=runs", "--dry-run=client", *values)
    notes = text.partition("NOTES:")[2]
    assert not [words for words in told if words not in notes]
    assert not [words for words in kept_quiet if words in notes]


def test_the_minimal_chart_is_what_it_was(helm):
    """After a wanted change: helm template burnish helm/burnish -n runs -f tests/helm/values/minimal.yaml > FILE."""
    golden = CHART.parents[1] / "tests/helm/golden/minimal.yaml"
    text = helm("template", "burnish", str(CHART), "--namespace=runs", f"--values={VALUE_SETS['minimal']}")
    assert text == golden.read_text()
