"""The sandbox's image as the service and as a container for each job; skipped without a daemon or without the image."""

import ast
import json
import time
from http.client import HTTPConnection

import pytest

from burnish.contracts.errors import StageError
from burnish.rewards.backends.docker import LABEL, DockerBackend
from burnish.rewards.backends.pool import PoolBackend
from sandbox.jobs import Job
from sandbox.limits import Limits

SPEC = {"entry_point": "f", "tests": [{"args": [1], "expected": 2}, {"args": [2], "expected": "canary-expected"}]}
ECHO = {"tests": [{"stdin": "7\n", "stdout": "7\n"}]}
PROGRAMS = {
    "passed": ("def f(x): return 2 if x == 1 else 'canary-' + 'expected'", SPEC),
    "wrong": ("def f(x): return x", SPEC),
    "fork": ("import os\ndef f(x): return os.fork()", SPEC),
    "crash": ("import os\nos._exit(0)", SPEC),
    "memory": ("def f(x): return 'x' * 10**10", SPEC),
    "endless": ("def f(x):\n    while True: pass", SPEC),
    "snoop": ("import os\ndef f(x): return [open(f'/proc/{p}/mem').name for p in os.listdir('/proc')]", SPEC),
    "bash": ('read line; echo "$line"', ECHO | {"language": "bash"}),
}

EXPECTED = {
    "passed": {"passed"},
    "wrong": {"wrong"},
    "fork": {"runtime_error"},
    "crash": {"runtime_error"},
    "memory": {"memory"},
    "endless": {"timeout"},
    "snoop": {"runtime_error"},
    "bash": {"passed"},
}


@pytest.fixture(scope="module")
def image(daemon, image_name):
    docker = pytest.importorskip("docker")
    try:
        return daemon.images.get(image_name("sandbox"))
    except docker.errors.ImageNotFound:
        pytest.skip(f"{image_name('sandbox')} is not built: python3 docker/build.py sandbox")


def jobs():
    return [Job(name, code, spec, "images", Limits(wall_s=2)) for name, (code, spec) in PROGRAMS.items()]


def results(backend):
    try:
        for job in jobs():
            backend.submit(job)
        found = {}
        while len(found) < len(PROGRAMS):
            found |= dict(backend.collect())
        return found
    finally:
        backend.close()


class Service:
    """The image's default command as a random user without any right."""

    def __init__(self, daemon, image):
        self.container = daemon.containers.run(
            image, detach=True, user="41234:41234", read_only=True, tmpfs={"/tmp": "exec,size=64m,mode=1777"},
            cap_drop=["ALL"], security_opt=["no-new-privileges"], pids_limit=256, mem_limit="1g",
            ports={"8000/tcp": ("127.0.0.1", None)}, labels={LABEL: "images"},
        )  # fmt: skip

    def __enter__(self):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            self.container.reload()
            try:
                if self.ask("GET", "/readyz")[0] == 200:
                    return self
            except (OSError, KeyError, IndexError):
                time.sleep(0.1)
        raise AssertionError(self.container.logs().decode())

    def __exit__(self, *_):
        self.container.remove(force=True)

    def ask(self, method, path, body=None):
        port = self.container.ports["8000/tcp"][0]["HostPort"]
        connection = HTTPConnection("127.0.0.1", int(port), timeout=30)
        connection.request(method, path, json.dumps(body) if body else None)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def processes(self):
        """The state of each process in the container."""
        look = "import glob; print([open(p).read() for p in glob.glob('/proc/[0-9]*/stat')])"
        said = self.container.exec_run(["python3", "-c", look]).output.decode()
        return [entry.partition(") ")[2][0] for entry in ast.literal_eval(said)]


def test_the_service_runs_jobs_as_any_user_with_a_read_only_root_and_no_rights(daemon, image):
    with Service(daemon, image) as service:
        for name, (code, spec) in PROGRAMS.items():
            status, body = service.ask("POST", "/v1/run", {"code": code, "spec": spec, "limits": {"wall_s": 2.0}})
            assert status == 200
            assert body["result"]["degraded"] is False
            assert set(body["result"]["verdicts"]) <= EXPECTED[name], (name, body)


def test_orphans_are_buried_and_a_stop_is_a_clean_end(daemon, image):
    code = "for i in 1 2 3 4 5 6; do sleep 50 & done; sleep 1; read line; echo $line"
    zygotes = (
        "[int(p.split('/')[2]) for p in glob.glob('/proc/[0-9]*/cmdline') if b'import main' in open(p, 'rb').read()]"
    )
    kill = f"import glob, os; [os.kill(pid, 9) for pid in {zygotes} if pid != os.getpid()]"
    with Service(daemon, image) as service:
        service.ask("POST", "/v1/jobs", {"job_id": "x", "code": code, "spec": ECHO | {"language": "bash"}})
        time.sleep(0.7)
        assert service.container.exec_run(["python3", "-c", kill]).exit_code == 0
        _, body = service.ask("POST", "/v1/jobs/poll", {"ids": ["x"], "wait_s": 20})
        assert body["finished"][0]["result"]["verdicts"] == ["passed"]
        # The worker that was not needed since may not have noticed.
        assert service.processes().count("Z") <= 1
        service.container.stop(timeout=20)
        service.container.reload()
        assert service.container.attrs["State"]["ExitCode"] == 0


def test_a_container_for_each_job_gives_the_verdicts_of_the_pool_and_leaves_nothing(daemon, image):
    through_containers = results(DockerBackend(image.tags[0], 2, "", False))
    through_pool = results(PoolBackend(2, False))
    assert {name: result.verdicts for name, result in through_containers.items()} == {
        name: result.verdicts for name, result in through_pool.items()
    }
    for name, result in through_containers.items():
        assert set(result.verdicts) <= EXPECTED[name]
        assert not result.degraded
    assert daemon.containers.list(all=True, filters={"label": f"{LABEL}=images"}) == []


def test_the_container_of_a_job_is_shut_off_and_ends_when_the_job_takes_too_long(daemon, image):
    backend = DockerBackend(image.tags[0], 1, "", False)
    backend.submit(Job("x", PROGRAMS["endless"][0], SPEC, "shut-off", Limits(wall_s=3)))
    found, deadline = [], time.monotonic() + 10
    while not found and time.monotonic() < deadline:
        found = daemon.containers.list(filters={"label": f"{LABEL}=shut-off"})
    host, config = found[0].attrs["HostConfig"], found[0].attrs["Config"]
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert (host["SecurityOpt"], host["Binds"], host["Privileged"]) == (["no-new-privileges"], None, False)
    assert host["Memory"] == host["MemorySwap"] == (2 * 512 + 256) * 2**20
    assert host["PidsLimit"] == 64 + 64
    assert list(host["Tmpfs"]) == ["/tmp"]
    assert config["User"] == "65532:65532"
    assert "canary" not in json.dumps(found[0].attrs)
    assert backend.collect()[0][1].verdicts == ("timeout", "timeout")
    backend.close()


def test_a_container_that_dies_gives_internal_and_no_reward_of_zero(daemon, image):
    backend = DockerBackend(image.tags[0], 1, "", False)
    backend.submit(Job("x", PROGRAMS["endless"][0], SPEC, "dying", Limits(wall_s=20)))
    found, deadline = [], time.monotonic() + 10
    while not found and time.monotonic() < deadline:
        found = daemon.containers.list(filters={"label": f"{LABEL}=dying"})
    found[0].kill()
    assert backend.collect()[0][1].verdicts == ("internal", "internal")
    backend.close()


def test_an_image_or_a_runtime_that_is_not_there_is_one_line(daemon, image):
    with pytest.raises(StageError, match=r"execute\.image 'burnish/absent:1' is not in the Docker daemon"):
        DockerBackend("burnish/absent:1", 1, "", False)
    with pytest.raises(StageError, match=r"execute\.runtime is 'absent'; this Docker daemon has"):
        DockerBackend(image.tags[0], 1, "absent", False)
