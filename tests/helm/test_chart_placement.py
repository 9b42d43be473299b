import pytest
import yaml
from rendered_chart import ROOT, HelmError, pick, pod_of

from pipelines.placement import ClusterPlacement, load_placement

EXAMPLE = ROOT / "examples/placement/gpu-nodes.yaml"


@pytest.fixture
def values(tmp_path):
    """The example of a placement as the chart takes it: images are the chart's own business."""
    placement = yaml.safe_load(EXAMPLE.read_text())
    del placement["registry"], placement["tag"]
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump({"pipelineUpload": {"placement": placement}}))
    return f"--values={path}"


def test_the_upload_is_given_the_placement_as_a_file_that_is_no_pipeline(render, values, tmp_path):
    (container,) = pod_of(render("defaults", values), "burnish-pipeline-upload")["containers"]
    (argument,) = (word for word in container["args"] if word.startswith("--placement="))
    folder, _, file = argument.removeprefix("--placement=").rpartition("/")
    assert folder in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert not file.endswith(".yaml"), "the script takes every .yaml for a pipeline"
    path = tmp_path / "placement"
    path.write_text(pick(render("defaults", values), "ConfigMap", "burnish-pipeline-upload")["data"][file])
    wanted = load_placement(EXAMPLE)
    assert load_placement(path) == wanted.model_copy(
        update={"registry": ClusterPlacement().registry, "tag": ClusterPlacement().tag}
    )


def test_without_a_placement_the_upload_knows_of_none(render):
    (container,) = pod_of(render(), "burnish-pipeline-upload")["containers"]
    assert not any("placement" in word for word in container["args"])
    assert "placement" not in pick(render(), "ConfigMap", "burnish-pipeline-upload")["data"]


@pytest.mark.parametrize("key", ["every", "registry", "tag"])
def test_the_schema_refuses_what_a_placement_has_not_or_the_chart_says_itself(render, key):
    with pytest.raises(HelmError, match=f"invalid propertyName '{key}'"):
        render("defaults", f"--set=pipelineUpload.placement.{key}=x")
