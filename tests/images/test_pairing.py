"""One stage, four places: its component, its Dockerfile, its placement, and what the chart runs of its image.

Where a stage or a service is added, moved or renamed in one of them alone, these fail.
"""

import re
from importlib import import_module

import pytest
import yaml
from dockerfile_text import ROOT, SERVICES, SHARED, ancestors, installed, instructions

from burnish.contracts.stages import STAGES
from pipelines.placement import ClusterPlacement
from pipelines.stage_placement import PLACEMENT

COMPONENTS = [path.parent.name for path in (ROOT / "components").glob("*/component.py")]
VALUES = yaml.safe_load((ROOT / "helm/burnish/values.yaml").read_text("utf-8"))
# The chart's own programs, by the key of their values.
CHART = {key: value["image"] for key, value in VALUES.items() if "repository" in (value or {}).get("image", {})}
TEMPLATES = "\n".join(path.read_text("utf-8") for path in (ROOT / "helm/burnish/templates").rglob("*.yaml"))


def test_components_dockerfiles_and_placement_are_about_the_same_stages(build):
    assert set(STAGES) == set(PLACEMENT) == set(build.images()) - SHARED - set(SERVICES)
    assert set(STAGES) <= set(COMPONENTS)


@pytest.mark.parametrize("name", sorted(set(COMPONENTS) - set(STAGES)))
def test_a_component_that_is_no_stage_runs_in_the_image_of_a_stage(name):
    component = getattr(import_module(f"components.{name}.component"), name)
    registry, _, stage = component.component_spec.implementation.container.image.partition("/")
    assert registry == "burnish"
    assert stage in STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_a_component_runs_in_the_image_of_its_name_on_a_laptop_and_on_a_cluster(stage):
    component = getattr(import_module(f"components.{stage}.component"), stage)
    container = component.component_spec.implementation.container
    assert container.image == f"burnish/{stage}"
    assert ClusterPlacement().image(stage).startswith(f"{container.image}:")
    source = (ROOT / f"components/{stage}/component.py").read_text("utf-8")
    assert re.search(rf'run_component\(\s*"{stage}"', source)


@pytest.mark.parametrize("stage", STAGES)
def test_gpus_go_to_stages_whose_image_has_torch(build, stage):
    assert bool(PLACEMENT[stage].gpus) is ("torch" in ancestors(build, stage))


@pytest.mark.parametrize("key", CHART)
def test_what_the_chart_runs_is_an_image_that_is_built(build, key):
    assert CHART[key]["repository"] in set(build.images()) - SHARED
    assert not CHART[key]["registry"], "its own registry is for exceptions"


def test_the_chart_runs_pods_as_the_user_of_the_images(dockerfiles):
    user = VALUES["podSecurityContext"]
    assert {f"{user['runAsUser']}:{user['runAsGroup']}"} == set(instructions(dockerfiles["base"], "USER"))


def test_an_image_has_what_the_chart_starts_in_it(build, dockerfiles):
    images = {key: CHART[key]["repository"] for key in CHART}
    assert (images["sandbox"], images["rolloutServer"], images["exporter"]) == ("sandbox", "server", "exporter")
    assert "submit" in installed(build, dockerfiles, images["pipelineUpload"])
    assert "vllm" in ancestors(build, images["rolloutServer"])
    for module in re.findall(r"python3,? -m,? ([a-z_.]+)", TEMPLATES):
        assert module.partition(".")[0] in {"burnish", "sandbox", "vllm"}, module
