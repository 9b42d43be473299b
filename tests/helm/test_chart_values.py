"""The chart's values: what the schema refuses, and that every one of them is described."""

import importlib.util
import json

import pytest
import yaml
from rendered_chart import CHART, ROOT, HelmError

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
# Maps whose keys are the user's own, and parts that Kubernetes or Burnish check when they are used.
OPEN = {"labels", "strings", "quantities", "objects", "affinity", "valueFrom", "pipelines", "placement", "global"}


def resolved(schema):
    while "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def objects_of(schema, path="values"):
    """(path, schema) of every object in the schema, each definition once."""
    if schema.get("type") == "object" or "object" in (schema.get("type") or []):
        yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from objects_of(inner, f"{path}.{name}")
    for key in ("allOf", "anyOf"):
        for inner in schema.get(key, []):
            yield from objects_of(inner, path)
    if isinstance(schema.get("items"), dict):
        yield from objects_of(schema["items"], f"{path}[]")


@pytest.fixture(scope="module")
def values_table():
    """helm/values_table.py, which is a script and not a package."""
    spec = importlib.util.spec_from_file_location("values_table", ROOT / "helm/values_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_object_refuses_keys_that_it_does_not_know():
    everything = [*objects_of(SCHEMA)]
    for name, definition in SCHEMA["definitions"].items():
        everything += objects_of(definition, name)
    assert len(everything) > 30
    for path, schema in everything:
        if path.rsplit(".", 1)[-1].rstrip("[]") not in OPEN:
            assert schema["additionalProperties"] is False, path


def test_every_value_is_in_the_schema_and_every_property_has_its_default():
    def compare(schema, values, path):
        schema = resolved(schema)
        if "properties" not in schema:
            return
        assert set(schema["properties"]) - {"global"} == set(values), path
        for name, value in values.items():
            if isinstance(value, dict) and path + name not in {"resources"} and name not in {"resources", "limits"}:
                compare(schema["properties"][name], value, f"{path}{name}.")

    compare(SCHEMA, DEFAULTS, "")


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("sandbx.enabled=true", "sandbx"),
        ("sandbox.replica=3", "replica"),
        ("sandbox.image.name=x", "name"),
        ("sandbox.limits.wall=5", "wall"),
        ("sandbox.workers=0", "/sandbox/workers"),
        ("sandbox.workers=two", "/sandbox/workers"),
        ("sandbox.enabled=maybe", "/sandbox/enabled"),
        ("sandbox.logLevel=loud", "/sandbox/logLevel"),
        ("sandbox.enclosure=docker", "/sandbox/enclosure"),
        ("sandbox.service.port=70000", "/sandbox/service/port"),
        ("sandbox.tmp.sizeLimit=2gb", "/sandbox/tmp/sizeLimit"),
        ("sandbox.tmp.medium=Disk", "/sandbox/tmp/medium"),
        ("sandbox.resources.requests.memory=lots", "/sandbox/resources/requests/memory"),
        ("sandbox.podDisruptionBudget.maxUnavailable=0", "maxUnavailable"),
        ("sandbox.extraEnv[0].nam=X", "extraEnv"),
        ("image.tag=latest", "/image/tag"),
        ("sandbox.image.tag=latest", "/sandbox/image/tag"),
        ("sandbox.image.digest=sha256:abc", "/sandbox/image/digest"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("image.registry=", "/image/registry"),
        ("podSecurityContext.runAsUser=0", "/podSecurityContext/runAsUser"),
        ("podSecurityContext.privileged=true", "privileged"),
        ("store.url=/data", "/store/url"),
        ("store.endpoint=s3.example.com", "/store/endpoint"),
        ("store.endpoint=https://key:secret@s3.example.com", "/store/endpoint"),
        ("store.secretKey=hunter2", "secretKey"),
        ("store.existingSecret=", "/store/existingSecret"),
        ("tracking.uri=mlflow", "/tracking/uri"),
        ("tracking.uri=https://user:password@mlflow", "/tracking/uri"),
        ("kfp.host=kfp.example.com", "/kfp/host"),
        ("kfp.token=abc", "token"),
        ("rbac.submitters[0].kind=Robot", "/rbac/submitters/0/kind"),
        ("networkPolicy.stagePodLabels=null", "stagePodLabels"),
        ("rolloutServer.dtype=int8", "/rolloutServer/dtype"),
        ("rolloutServer.gpus=2", "/rolloutServer/gpus"),
        ("rolloutServer.engine=tgi", "/rolloutServer/engine"),
        ("rolloutServer.leaseSeconds=0", "/rolloutServer/leaseSeconds"),
        ("rolloutServer.token=abc", "token"),
        ("pipelineUpload.overrides[0]=rounds", "/pipelineUpload/overrides/0"),
        ("pipelineUpload.pipelines.Bad_Name.rounds=1", "Bad_Name"),
        ("kfpLauncher.pipelineRoot=mlpipeline", "/kfpLauncher/pipelineRoot"),
        ("kfpLauncher.endpoint=http://s3:9000", "/kfpLauncher/endpoint"),
        ("dev.seaweedfs.buckets[0]=A", "/dev/seaweedfs/buckets/0"),
        ("dev.minio.enabled=true", "minio"),
        ("monitoring.serviceMonitor.interval=often", "/monitoring/serviceMonitor/interval"),
        ("monitoring.prometheusRule.training.entropyShare=3", "/monitoring/prometheusRule/training/entropyShare"),
        ("exporter.intervalSeconds=0", "/exporter/intervalSeconds"),
        ("exporter.secretKey=hunter2", "secretKey"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(helm, setting, named):
    with pytest.raises(HelmError, match=r"(?s)schema.*" + named.replace("/", "/")):
        helm("template", "burnish", str(CHART), f"--set={setting}")


def test_no_value_is_itself_a_secret():
    def names(values):
        for name, value in values.items():
            yield name
            if isinstance(value, dict):
                yield from names(value)

    secret = {"password", "token", "secret", "secretKey", "accessKey", "apiKey", "credentials"}
    assert not secret & set(names(DEFAULTS))


def test_every_setting_is_described(values_table):
    described = {path for path, _, _ in values_table.settings()}

    def undescribed(values, path=""):
        for name, value in values.items():
            if path + name not in described:
                if isinstance(value, dict) and value:
                    yield from undescribed(value, f"{path}{name}.")
                else:
                    yield path + name

    assert not [*undescribed(DEFAULTS)]
    assert all(len(text) > 5 for _, _, text in values_table.settings())


def test_the_table_of_the_page_is_that_of_the_values(values_table):
    """`python3 helm/values_table.py` writes it anew."""
    page = values_table.PAGE.read_text()
    assert values_table.BEGIN in page
    assert values_table.with_table(page) == page
