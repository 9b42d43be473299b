"""What the Dockerfiles promise, read from their text: no daemon is needed."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import burnish
from burnish.contracts.stages import STAGES
from sandbox.languages import LANGUAGES

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "docker/requirements"
# Images that others stand on; they are never run.
SHARED = {"wheels", "base", "code", "tasks", "torch", "vllm"}
# Images that are run beside the stages.
SERVICES = {"sandbox"}
CODE = {"burnish", "sandbox", "components", "pipelines"}
LABELS = {"title", "description", "licenses", "version", "revision", "source"}


def instructions(text, keyword):
    return re.findall(rf"^{keyword} +(.+)$", text, re.MULTILINE)


def ancestors(build, image):
    """Images whose layers `image` has: those of its last FROM, which for vllm names one of its own steps."""
    text = (ROOT / f"docker/{image}.Dockerfile").read_text("utf-8")
    steps = {name: parent for parent, name in re.findall(r"^FROM (\S+) AS (\w+)$", text, re.MULTILINE)}
    last = instructions(text, "FROM")[-1].replace("${ACCELERATOR}", "cpu")
    parents = build.PARENT.findall(f"FROM {steps.get(last, last)}")
    return [image] + [name for parent in parents for name in ancestors(build, parent)]


def installed(build, dockerfiles, image, accelerator="cpu"):
    """Names of the requirement files whose packages `image` has."""
    runs = [run for name in ancestors(build, image) for run in instructions(dockerfiles[name], "RUN")]
    words = [
        word for run in runs for call in re.findall(r"install\.sh /(\S+.*?)(?:&&|$)", run) for word in call.split()[1:]
    ]
    other = "-cuda" if accelerator == "cpu" else "-cpu"
    return {word for word in words if not word.startswith("-") and not word.endswith(other)}


def pins(path):
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for requirement in requirements:
        assert len(requirement.specifier) == 1, f"{path.name}: {requirement} is not one exact version"
        assert next(iter(requirement.specifier)).operator == "==", f"{path.name}: {requirement} is not exact"
        assert "*" not in str(requirement.specifier), f"{path.name}: {requirement} is not exact"
    return {canonicalize_name(item.name): next(iter(item.specifier)).version for item in requirements}


def test_every_stage_has_its_dockerfile_and_there_are_no_others(build):
    assert set(build.images()) == set(STAGES) | SHARED | SERVICES


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_torch_exactly_when_the_table_says_so(build, stage):
    assert ("torch" in ancestors(build, stage)) is STAGES[stage].torch


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_mlflow_exactly_when_it_tracks(build, dockerfiles, stage):
    tracks = STAGES[stage].tracked or stage == "report"
    assert ("track" in installed(build, dockerfiles, stage)) is tracks


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_ends_with_the_same_code_so_that_all_agree_on_its_digest(dockerfiles, stage):
    assert instructions(dockerfiles[stage], "COPY") == ["--from=code / /opt/burnish/"]
    assert {copied.split()[0] for copied in instructions(dockerfiles["code"], "COPY")} == CODE | {"--from=build"}


@pytest.mark.parametrize("stage", STAGES)
def test_stages_run_as_a_numeric_user_without_entrypoint(build, dockerfiles, stage):
    finals = [dockerfiles[image].rsplit("\nFROM ", 1)[-1] for image in ancestors(build, stage)]
    users = [user for final in finals for user in instructions(final, "USER")[-1:]]
    assert users[0] == "65532:65532"
    for final in finals:
        assert instructions(final, "USER")[-1:] in ([], ["65532:65532"])
        assert not instructions(final, "ENTRYPOINT")
    assert instructions(dockerfiles["base"], "CMD") == ['["python3"]']


@pytest.mark.parametrize("stage", [*STAGES, *SERVICES])
def test_what_is_run_carries_every_label(dockerfiles, stage):
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', dockerfiles[stage]))
    assert set(labels) == LABELS
    assert labels["title"] == f"burnish {stage}"
    for name in ("version", "revision", "source"):
        assert labels[name] == f"${{{name.upper()}}}"


def test_the_sandbox_holds_its_own_code_alone_and_runs_as_a_numeric_user(build, dockerfiles):
    text = dockerfiles["sandbox"]
    final = text.rsplit("\nFROM ", 1)[1]
    assert build.build_order(["sandbox"]) == ["wheels", "base", "code", "sandbox"]
    assert final.startswith("${BASE}\n")
    assert instructions(text, "COPY") == ["--from=code /sandbox /opt/burnish/sandbox"]
    assert instructions(text, "USER") == ["65532:65532"]
    assert not instructions(text, "ENTRYPOINT")
    assert "install.sh" not in text
    assert instructions(text, "CMD") == ['["python3", "-m", "sandbox", "serve", "--host=0.0.0.0"]']
    assert "/healthz" in instructions(text, "HEALTHCHECK")[0]


def test_the_sandbox_has_a_compiler_only_where_a_language_is_asked_for(dockerfiles):
    (languages,) = re.findall(r"^ARG LANGUAGES=(.*)$", dockerfiles["sandbox"], re.MULTILINE)
    assert languages == ""
    (run,) = instructions(dockerfiles["sandbox"], "RUN")
    assert re.search(r'if \[ -n "\$\{packages\}" \]; then apt-get update', run)
    assert (
        set(re.findall(r"(\w+)\) packages=", run))
        == {"c", "cpp", "javascript"}
        == LANGUAGES.keys() - {"python", "bash"}
    )


def test_shared_images_carry_no_labels_that_a_registry_would_list(dockerfiles):
    assert not [image for image in SHARED if "org.opencontainers" in dockerfiles[image]]


def test_every_parent_is_one_of_ours_at_the_same_tag_or_the_base_argument(dockerfiles):
    allowed = re.compile(r"(\$\{REPOSITORY\}/\w+:\$\{TAG\}|\$\{BASE\}|scratch)( AS \w+)?|\$\{ACCELERATOR\}")
    for image, text in dockerfiles.items():
        for parent in instructions(text, "FROM"):
            assert allowed.fullmatch(parent), f"{image}: FROM {parent}"
    bases = {base for text in dockerfiles.values() for base in re.findall(r"^ARG BASE=(.+)$", text, re.MULTILINE)}
    assert bases == {"python:3.11-slim-bookworm"}


def test_no_image_is_pulled_by_a_moving_tag_or_fetches_addresses(dockerfiles):
    for image, text in dockerfiles.items():
        assert ":latest" not in text, image
        assert not instructions(text, "ADD"), image
        assert "syntax=" not in text, image
        assert not re.search(r"https?://|curl |wget ", text), image


def test_only_code_and_the_products_of_earlier_steps_are_copied(dockerfiles):
    sources = {"code": CODE | {"--from=build"}, "wheels": {"wheels", "--from=build"}}
    for image, text in dockerfiles.items():
        for copied in instructions(text, "COPY"):
            assert copied.split()[0] in sources.get(image, {"--from=code"}), f"{image}: COPY {copied}"


@pytest.mark.parametrize("stage", STAGES)
def test_code_comes_after_packages_so_that_a_change_rebuilds_only_the_last_layer(dockerfiles, stage):
    last = dockerfiles[stage].rsplit("\nFROM ", 1)[1]
    assert last.count("COPY ") == 1
    assert not re.search(r"^RUN ", last.split("COPY --from=code", 1)[1], re.MULTILINE)


def test_the_build_context_holds_only_what_dockerfiles_name():
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert allowed == CODE | {"constraints.txt", "docker/install.sh", "docker/requirements"}


def test_certificates_and_index_settings_enter_as_secrets_alone(dockerfiles):
    for image, text in dockerfiles.items():
        for run in instructions(text, "RUN"):
            if "install.sh" in run and "--uninstall" not in run.split("install.sh", 1)[1][:12]:
                assert "--mount=type=secret,id=ca" in run, image
                assert "--mount=type=secret,id=pip" in run, image
        declared = instructions(text, "ARG") + instructions(text, "ENV")
        named = re.compile(r"password|passwd|token|secret|credential|index_url|api_?key", re.IGNORECASE)
        assert not [line for line in declared if named.search(line)], image


def test_every_run_that_installs_leaves_no_cache_behind(dockerfiles):
    for image, text in dockerfiles.items():
        for run in instructions(text, "RUN"):
            if "install.sh" in run:
                assert "type=cache,target=/root/.cache/pip" in run, image
            if "apt-get" in run:
                assert "type=cache,target=/var/lib/apt/lists" in run, image
                assert "--no-install-recommends" in run, image


def test_compilers_are_only_where_wheels_are_built_and_where_a_gpu_needs_them(dockerfiles):
    holders = set()
    for image, text in dockerfiles.items():
        for step in f"\n{text}".split("\nFROM ")[1:]:
            if re.search(r"\bgcc\b|\w-dev\b", step):
                holders.add((image, step.splitlines()[0].partition(" AS ")[2]))
    assert holders - {("sandbox", "")} == {("wheels", "build"), ("vllm", "cuda")}
    assert re.search(r"^FROM scratch$", dockerfiles["wheels"], re.MULTILINE)


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
    # vLLM's release of transformers replaces that of the image below.
    for name in names - ({"torch"} if vllm else set()):
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
