"""docker/build.py: in which order it builds, what it tells the images about themselves, what it hands to a build."""

import json
import tomllib

import pytest
from dockerfile_text import ROOT, pins

import burnish


def test_the_script_builds_parents_first(build):
    order = build.build_order([])
    assert set(order) == set(build.images())
    for image, parents in build.images().items():
        assert all(order.index(parent) < order.index(image) for parent in parents)


def test_asking_for_one_image_builds_only_what_it_stands_on(build):
    assert build.build_order(["execute"]) == ["wheels", "base", "code", "execute"]


def test_an_unknown_image_is_refused_by_name(build):
    with pytest.raises(SystemExit, match="no image is called 'rolout'; there are base, code, evaluate"):
        build.build_order(["rolout"])


def test_the_tag_is_the_version_of_the_package(build):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert build.version() == burnish.__version__ == project["version"]


def test_wheels_of_the_machine_are_taken_only_at_the_versions_in_use(build, tmp_path):
    torch = pins(ROOT / "constraints.txt")["torch"]
    for name in (f"torch-{torch}+cpu-cp311-cp311-linux_x86_64.whl", "torch-0.1+cpu-cp311-cp311-linux_x86_64.whl"):
        (tmp_path / name).touch()
    assert [wheel.name[: len(torch) + 10] for wheel in build.local_wheels(str(tmp_path), "cpu")] == [
        f"torch-{torch}+cpu"
    ]
    assert build.local_wheels(str(tmp_path), "cuda") == []
    assert build.local_wheels("", "cpu") == []


def test_only_files_that_exist_become_build_secrets(build, monkeypatch, tmp_path):
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "absent.conf"))
    assert build.secrets() == [f"--secret=id=ca,src={tmp_path / 'ca.pem'}"]


def test_images_of_a_commit_are_made_at_its_time_unless_told_otherwise(build, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert build.created() > 1_700_000_000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    assert build.created() == 1_800_000_000
    assert build._environment()["SOURCE_DATE_EPOCH"] == "1800000000"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(SystemExit, match="SOURCE_DATE_EPOCH is 'yesterday'; give whole seconds since 1970"):
        build.created()


def test_of_an_image_in_two_registries_the_digest_in_the_one_pushed_to_is_named(build, tmp_path):
    known = [f"{place}.example.com/burnish/sft@sha256:{place}" for place in ("old", "new")]
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho '{json.dumps(known)}'\n")
    docker.chmod(0o755)
    new = "new.example.com/burnish/sft"
    assert build.pushed_digest(str(docker), new, f"{new}:1") == f"{new}@sha256:new"
