"""Every version that enters an image is exact, and it is the one that the test suite runs with."""

import tomllib

import pytest
from dockerfile_text import REQUIREMENTS, ROOT, ancestors, installed, pins
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from burnish.contracts.stages import STAGES


@pytest.mark.parametrize("file", sorted(path.name for path in REQUIREMENTS.glob("*.txt")))
def test_every_version_is_exact(file):
    assert pins(REQUIREMENTS / file)


@pytest.mark.parametrize("file", ["constraints-vllm-cpu.txt", "constraints-vllm-cuda.txt"])
def test_vllm_images_differ_from_the_tested_environment_only_where_vllm_demands_it(file):
    tested, ours = pins(ROOT / "constraints.txt"), pins(REQUIREMENTS / file)
    different = {name for name in tested.keys() & ours.keys() if tested[name] != ours[name]}
    assert different == {"transformers", "numpy", "fastapi"}
    assert Version("5.16.1") <= Version(ours["transformers"]) < Version("5.20")


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
@pytest.mark.parametrize("stage", STAGES)
def test_what_a_stage_installs_is_held_by_the_constraints_it_is_installed_under(build, dockerfiles, stage, accelerator):
    vllm = "vllm" in ancestors(build, stage)
    held = pins(ROOT / "constraints.txt") | pins(REQUIREMENTS / "constraints-torch.txt")
    if vllm:
        held |= pins(REQUIREMENTS / f"constraints-vllm-{accelerator}.txt")
    names = installed(build, dockerfiles, stage, accelerator)
    assert "base" in names
    assert (f"vllm-{accelerator}" in names) is vllm
    for name in names:
        for package, number in pins(REQUIREMENTS / f"{name}.txt").items():
            assert held[package] == number, f"{stage}: {name}.txt has {package} {number}, held at {held[package]}"


def test_sources_are_compiled_at_the_versions_that_are_installed():
    held = pins(ROOT / "constraints.txt")
    for package, number in pins(REQUIREMENTS / "sdists.txt").items():
        assert held[package] == number


@pytest.mark.parametrize("stage", STAGES)
def test_installed_versions_lie_in_the_ranges_of_pyproject(build, dockerfiles, stage):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    ranges = {
        canonicalize_name(item.name): item.specifier for item in map(Requirement, project["dependencies"] + extras)
    }
    checked = set()
    for name in installed(build, dockerfiles, stage):
        for package, number in pins(REQUIREMENTS / f"{name}.txt").items():
            if package in ranges:
                assert number in ranges[package], f"{stage}: {package} {number} is outside {ranges[package]}"
                checked.add(package)
    assert {"pydantic", "pyarrow", "minio", "kfp"} <= checked
