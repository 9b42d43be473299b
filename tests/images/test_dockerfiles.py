"""What the Dockerfiles promise, read from their text: no daemon is needed."""

import json
import re

import pytest
from dockerfile_text import ROOT, SERVICES, SHARED, ancestors, installed, instructions

from burnish.contracts.stages import STAGES
from sandbox.languages import LANGUAGES

CODE = {"burnish", "sandbox", "components", "pipelines"}
LABELS = {"title", "description", "licenses", "version", "revision", "created", "source"}


def test_every_stage_has_its_dockerfile_and_there_are_no_others(build):
    assert set(build.images()) == set(STAGES) | SHARED | set(SERVICES)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_torch_exactly_when_the_table_says_so(build, stage):
    assert ("torch" in ancestors(build, stage)) is STAGES[stage].torch


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_mlflow_exactly_when_it_tracks(build, dockerfiles, stage):
    tracks = STAGES[stage].tracked or stage == "report"
    assert ("track" in installed(build, dockerfiles, stage)) is tracks


@pytest.mark.parametrize("stage", [*STAGES, "server", "exporter"])
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
    for name in ("version", "revision", "created", "source"):
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


@pytest.mark.parametrize(
    ("service", "module", "verb"),
    [
        ("sandbox", "sandbox", "serve"),
        ("server", "burnish.cli.main", "serve"),
        ("exporter", "burnish.cli.main", "exporter"),
    ],
)
def test_a_service_starts_by_itself_and_says_how_it_is(dockerfiles, service, module, verb):
    text = dockerfiles[service]
    (port,) = instructions(text, "EXPOSE")
    assert json.loads(instructions(text, "CMD")[0]) == ["python3", "-m", module, verb, "--host=0.0.0.0"]
    (check,) = instructions(text, "HEALTHCHECK")
    assert f"'127.0.0.1', {port}, timeout=" in check
    assert "'GET', '/healthz'" in check


def test_stages_are_no_services(dockerfiles):
    for stage in STAGES:
        assert not instructions(dockerfiles[stage], "HEALTHCHECK") + instructions(dockerfiles[stage], "EXPOSE")


def test_no_stage_has_a_client_of_kubernetes_or_a_cloud_that_it_does_not_need(build, dockerfiles):
    for image in [*STAGES, *SERVICES]:
        names = installed(build, dockerfiles, image)
        assert ("submit" in names) is (image == "validate"), image
        assert ("cluster" in names) is (image in {"execute", "evaluate"}), image
    (run,) = (run for run in instructions(dockerfiles["base"], "RUN") if "executor" in run)
    assert "--no-deps executor" in run


def test_the_sandbox_has_a_compiler_only_where_a_language_is_asked_for(dockerfiles):
    (languages,) = re.findall(r"^ARG LANGUAGES=(.*)$", dockerfiles["sandbox"], re.MULTILINE)
    assert languages == ""
    (run,) = instructions(dockerfiles["sandbox"], "RUN")
    assert re.search(r'if \[ -n "\$\{packages\}" \]; then sh /docker/apt', run)
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
    assert allowed == CODE | {"constraints.txt", "docker/apt.sh", "docker/install.sh", "docker/requirements"}


def test_certificates_and_index_settings_enter_as_secrets_alone(dockerfiles):
    for image, text in dockerfiles.items():
        for run in instructions(text, "RUN"):
            if "install.sh" in run and "--uninstall" not in run.split("install.sh", 1)[1][:12]:
                assert "--mount=type=secret,id=ca" in run, image
                assert "--mount=type=secret,id=pip" in run, image
            if "apt.sh" in run:
                assert "--mount=type=secret,id=ca" in run, image
        declared = instructions(text, "ARG") + instructions(text, "ENV")
        named = re.compile(r"password|passwd|token|secret|credential|index_url|api_?key", re.IGNORECASE)
        assert not [line for line in declared if named.search(line)], image


def test_every_run_that_installs_leaves_no_cache_behind(dockerfiles):
    for image, text in dockerfiles.items():
        for run in instructions(text, "RUN"):
            if "install.sh" in run:
                assert "type=cache,target=/root/.cache/pip" in run, image
            if "apt.sh" in run:
                assert "type=cache,target=/var/cache/apt" in run, image
                assert "type=cache,target=/var/lib/apt/lists" in run, image
            assert "apt-get" not in run, f"{image}: packages come through apt.sh"


def test_compilers_are_only_where_wheels_are_built_and_where_a_gpu_needs_them(dockerfiles):
    holders = set()
    for image, text in dockerfiles.items():
        for step in f"\n{text}".split("\nFROM ")[1:]:
            if re.search(r"--compiler\b|\bgcc\b|\w-dev\b", step):
                holders.add((image, step.splitlines()[0].partition(" AS ")[2]))
    assert holders - {("sandbox", "")} == {("wheels", "build"), ("vllm", "cuda")}
    assert re.search(r"^FROM scratch$", dockerfiles["wheels"], re.MULTILINE)
