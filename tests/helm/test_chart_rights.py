"""Who may do what: every right of every role named here, and the network around the sandbox."""

from rendered_chart import containers, pick, pods

CREATE_PIPELINES = {"apiGroups": ["pipelines.kubeflow.org"], "resources": ["pipelines"], "verbs": ["create", "list"]}


def roles(objects):
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == "Role"}


def test_a_single_user_installation_needs_no_rights_at_all(render):
    kinds = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert not [item for item in render() if item["kind"] in kinds]


def test_rights_can_be_left_to_others(render):
    assert not roles(render("everything", "--set=rbac.create=false"))


def test_these_are_all_the_rights_that_the_chart_ever_gives(render):
    objects = render("everything")
    assert {name: role["rules"] for name, role in roles(objects).items()} == {
        "rl-pipeline-upload": [CREATE_PIPELINES],
        "rl-submitter": [
            {
                "apiGroups": ["pipelines.kubeflow.org"],
                "resources": ["pipelines", "experiments"],
                "verbs": ["create", "get", "list"],
            },
            {
                "apiGroups": ["pipelines.kubeflow.org"],
                "resources": ["runs"],
                "verbs": ["create", "get", "list", "readLog"],
            },
        ],
        "rl-agent-sandbox": [
            {
                "apiGroups": ["agents.x-k8s.io"],
                "resources": ["sandboxes"],
                "verbs": ["create", "get", "patch", "delete"],
            }
        ],
    }
    assert not [item for item in objects if item["kind"].startswith("Cluster")]


def test_every_role_is_bound_to_whom_the_values_name_and_to_nobody_else(render):
    objects = render("everything")
    bound = {}
    for item in objects:
        if item["kind"] == "RoleBinding":
            role = roles(objects)[item["roleRef"]["name"]]
            assert role["metadata"].get("namespace") == item["metadata"].get("namespace")
            bound[item["roleRef"]["name"]] = [(one["kind"], one["name"]) for one in item["subjects"]]
    assert bound == {
        "rl-pipeline-upload": [("ServiceAccount", "rl-pipeline-upload")],
        "rl-submitter": [("Group", "researchers")],
        "rl-agent-sandbox": [("ServiceAccount", "default-editor")],
    }


def test_kfps_own_accounts_get_nothing_by_default(render):
    values = ("--set=kfp.multiUser=true",)
    for item in render("defaults", *values):
        if item["kind"] == "RoleBinding":
            assert not {one["name"] for one in item["subjects"]} & {"pipeline-runner", "default-editor", "default"}


def test_rights_for_kfp_are_in_the_namespace_of_the_profile(render):
    for name, role in roles(render("everything")).items():
        assert role["metadata"]["namespace"] == ("runs" if name == "rl-agent-sandbox" else "team-a")
    (role,) = roles(render("defaults", "--set=kfp.multiUser=true")).values()
    assert role["metadata"]["namespace"] == "runs"


def test_nothing_goes_out_of_the_sandbox_and_only_stages_tests_and_prometheus_come_in(render):
    policy = pick(render(), "NetworkPolicy", "burnish-sandbox")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["egress"] == []
    (rule,) = policy["ingress"]
    stages, test = rule["from"]
    assert stages == {"podSelector": {"matchLabels": {"pipelines.kubeflow.org/v2_component": "true"}}}
    assert test["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"

    everything = pick(render("everything"), "NetworkPolicy", "rl-sandbox")["spec"]
    peers = [peer for rule in everything["ingress"] for peer in rule["from"]]
    assert len(peers) == 4
    assert all(peer.get("podSelector") or peer["namespaceSelector"]["matchLabels"] for peer in peers)
    elsewhere = next(peer for peer in peers if "matchExpressions" in peer.get("namespaceSelector", {}))
    assert elsewhere["namespaceSelector"]["matchExpressions"][0]["values"] == ["team-a", "team-b"]
    assert elsewhere["podSelector"] == stages["podSelector"]


def test_sandboxes_that_stages_make_are_closed_as_well(render):
    policy = pick(render("everything"), "NetworkPolicy", "rl-agent-sandbox")["spec"]
    assert policy["egress"] == []
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert not [item for item in render() if item["metadata"]["name"] == "burnish-agent-sandbox"]


def test_only_stages_and_prometheus_reach_the_server_whose_weights_can_be_replaced(render):
    (rule,) = pick(render("everything"), "NetworkPolicy", "rl-rollout-server")["spec"]["ingress"]
    assert len(rule["from"]) == 3
    for peer in rule["from"]:
        assert peer.get("podSelector", {}).get("matchLabels") or peer["namespaceSelector"]["matchLabels"]


def test_only_s3_of_the_development_store_can_be_reached(render):
    (rule,) = pick(render("everything"), "NetworkPolicy", "rl-seaweedfs")["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["s3"]


def test_the_sandbox_holds_no_secret_but_its_own_token(render):
    for name, _, pod in pods(render("everything")):
        if name == "rl-sandbox":
            assert [volume["name"] for volume in pod["volumes"]] == ["tmp"]
            for container in containers(pod):
                assert "envFrom" not in container
                named = [one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"] if "valueFrom" in one]
                assert named == ["burnish-sandbox"]


def test_development_services_are_off(render):
    names = {item["metadata"]["name"] for item in render()}
    assert not {name for name in names if "seaweedfs" in name or "mlflow" in name or "rollout-server" in name}
