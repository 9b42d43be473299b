"""The services that runs talk to, tried as a stage would use them: bucket, sandbox, rollout server, exporter, MLflow.

A name that only the cluster knows cannot be tried from outside of it; that is said, and is no failure.
"""

import json
import os
import secrets
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from burnish.cli.finding import Finding
from burnish.cli.kube import CannotLook, Cluster, in_a_pod
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import StageError, StoreError
from pipelines.placement import ROLLOUT_KEYS, STORE_SECRET

_INSIDE = "check in a pod: burnish doctor --cluster --pod | kubectl create -f -"
_HONEST = "def f(x): return x + 1"
_HONEST_SPEC: dict[str, Any] = {"entry_point": "f", "tests": [{"args": [20], "expected": 21}]}
# A program that gets 1 out of these got out.
_ATTACKS = {
    "opens a socket": "import socket\ndef f(x): socket.socket(); return 1",
    "reads the service's environment": "def f(x): return len(open('/proc/1/environ', 'rb').read(1))",
    "writes outside its folder": "def f(x): return open('/var/tmp/burnish-doctor', 'w').write('x')",
    "starts a process": "import os\ndef f(x):\n    if os.fork() == 0: os._exit(0)\n    return 1",
}
_ATTACK_SPEC: dict[str, Any] = {"entry_point": "f", "tests": [{"args": [0], "expected": 1}]}


def check_bucket() -> Iterator[Finding]:
    """Put, get, list and delete a probe object in the store that the environment names."""
    from burnish.store import open_store

    if not os.environ.get("BURNISH_STORE"):
        raise CannotLook(f"BURNISH_STORE is not set; set it and its AWS_* here, or {_INSIDE}")
    if reason := hidden(os.environ.get("BURNISH_S3_ENDPOINT", "")):
        raise CannotLook(reason)
    try:
        backend = open_store().backend
    except StoreError as error:
        yield Finding("bucket", str(error), "correct what it names: BURNISH_STORE, BURNISH_S3_ENDPOINT, AWS_*")
        return
    key, data = f"doctor/{secrets.token_hex(8)}", b"burnish doctor"
    steps = (
        ("put", lambda: backend.put_bytes(key, data), None),
        ("get", lambda: backend.get_bytes(key), data),
        ("list", lambda: [found.key for found in backend.list("doctor/")].count(key), 1),
        ("delete", lambda: backend.delete([key]), None),
    )
    done = []
    for right, act, expected in steps:
        try:
            found = act()
        except StoreError as error:
            yield Finding(
                "bucket", f"cannot {right}: {error}", f"let the key in {STORE_SECRET} {right} in {backend.url}"
            )
            # The other rights are worth knowing too, but without an object there is nothing to try them on.
            if right == "put":
                return
            continue
        if found != expected:
            fix = "use a store that is consistent after a write"
            yield Finding("bucket", f"{right} of an object just written gave something else", fix)
        else:
            done.append(right)
    yield Finding("bucket", f"{backend.url}: may {', '.join(done)}")


def check_sandbox_service(config: RunConfig) -> Finding:
    """Its readiness, its token, a program that works, and some that try to get out."""
    from burnish.rewards.backends.service_connection import ServiceConnection, ServiceUnavailable
    from sandbox.jobs import Job

    url = config.execute.service_url.rstrip("/")
    if reason := hidden(url):
        raise CannotLook(reason)
    if problem := get_problem(f"{url}/readyz"):
        fix = "see its pods (kubectl get pods -l app.kubernetes.io/component=sandbox), its NetworkPolicy, "
        return Finding("sandbox", f"{url}/readyz {problem}", f"{fix}and execute.service_url")
    programs = {"works": (_HONEST, _HONEST_SPEC)} | {name: (code, _ATTACK_SPEC) for name, code in _ATTACKS.items()}
    mark = secrets.token_hex(8)
    jobs = {f"doctor-{mark}-{number}": name for number, name in enumerate(programs)}
    lines = [Job(job_id, *programs[name], owner="doctor").to_json() for job_id, name in jobs.items()]
    connection = ServiceConnection(url, os.environ.get("BURNISH_SANDBOX_TOKEN"))
    try:
        connection.submit(lines)
        finished, _ = connection.poll(list(jobs), 20.0, len(jobs), forget=[])
        connection.forget(list(jobs))
    except ServiceUnavailable as error:
        return Finding("sandbox", f"{url}: {error}", "see the log of its pods and their load (/metrics)")
    except StageError as error:
        return Finding(
            "sandbox", str(error), "make token and address those of the service; it has one version with this"
        )
    finally:
        connection.close()
    passed = {jobs[job_id] for job_id, result in finished if set(result["verdicts"]) == {"passed"}}
    if len(finished) < len(jobs):
        return Finding(
            "sandbox", f"{url}: {len(finished)} of {len(jobs)} programs ended in 20 s", "give it more workers"
        )
    if "works" not in passed:
        return Finding("sandbox", f"{url}: a program that is right did not pass", "see the log of its pods")
    if out := sorted(passed - {"works"}):
        fix = "run no model-written code there; python3 -m sandbox check in its pod says what is missing"
        return Finding("sandbox", f"{url}: a program {', '.join(out)}", fix)
    stopped = len(_ATTACKS)
    return Finding("sandbox", f"{url}: ready, runs a program, and stopped {stopped} of {stopped} that tried to get out")


def check_rollout_server(config: RunConfig) -> Finding:
    """The warm rollout server: its readiness, its token, and which policy it holds."""
    url = config.rollout.endpoint.url.rstrip("/")
    if reason := hidden(url):
        raise CannotLook(reason)
    if problem := get_problem(f"{url}/readyz"):
        fix = "see its pods (kubectl get pods -l app.kubernetes.io/component=rollout-server), its NetworkPolicy, "
        return Finding("rollout", f"{url}/readyz {problem}", f"{fix}and rollout.endpoint.url")
    token = os.environ.get(ROLLOUT_KEYS[0], "").strip()
    request = urllib.request.Request(f"{url}/burnish/version", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            state = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in {401, 403}:
            fix = f"make {ROLLOUT_KEYS[0]} the server's own, here and in the stages' secret"
            return Finding("rollout", f"{url} does not take the token", fix)
        return Finding(
            "rollout", f"{url}/burnish/version answers {error.code}", "give the server the image of this version"
        )
    except (OSError, ValueError) as error:
        return Finding("rollout", f"{url}/burnish/version: {error}", "see the log of its pod")
    if not state["policy"] and state["failure"]:
        detail = f"{url}: the last policy could not be loaded: {state['failure']['reason']}"
        return Finding("rollout", detail, "see the log of its pod; its settings must fit the runs' model")
    held = f"policy version {state['policy_version']} ({state['policy'][:12]})" if state["policy"] else "no policy yet"
    return Finding("rollout", f"{url}: {state['state']}, {held}")


def check_exporter(cluster: Cluster) -> Finding:
    """The exporter of training metrics, where the chart installed one."""
    labels = "app.kubernetes.io/part-of=burnish,app.kubernetes.io/component=exporter"
    found = cluster.read("services", cluster.core.list_namespaced_service, cluster.namespace, label_selector=labels)
    if found is None or not found.items:
        return Finding("exporter", "none (exporter.enabled), so Prometheus hears nothing of runs")
    service = found.items[0]
    name = service.metadata.name
    url = f"http://{name}.{cluster.namespace}.svc:{service.spec.ports[0].port}"
    if reason := hidden(url):
        raise CannotLook(reason)
    if problem := get_problem(f"{url}/readyz"):
        fix = f"see kubectl logs deployment/{name} -n {cluster.namespace}; its secret must be allowed to list and get"
        return Finding("exporter", f"{url}/readyz {problem}", f"{fix}, and its NetworkPolicy let this pod in")
    return Finding("exporter", f"{url} has read the store")


def check_tracking(uri: str | None) -> Finding:
    """MLflow's health, at the address that stages use."""
    if not uri:
        return Finding("mlflow", "no MLFLOW_TRACKING_URI, so runs are not tracked")
    if reason := hidden(uri):
        raise CannotLook(reason)
    if problem := get_problem(f"{uri.rstrip('/')}/health"):
        fix = (
            "start it, or correct tracking.uri in the chart's values; runs go on without it and send what is left later"
        )
        return Finding("mlflow", f"{without_secrets(uri)} {problem}", fix)
    return Finding("mlflow", f"{without_secrets(uri)} answers")


def hidden(url: str) -> str | None:
    """Why nobody outside of the cluster could find `url`; None in a pod, and for a name that is known here."""
    host = urlsplit(url).hostname
    if in_a_pod() or not host:
        return None
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return f"{host} is not known outside of the cluster; {_INSIDE}, or forward its port and name that address"
    return None


def get_problem(url: str) -> str | None:
    """What goes wrong with a GET of `url`; None when it answers well."""
    try:
        with urllib.request.urlopen(url, timeout=10):
            return None
    except urllib.error.HTTPError as error:
        return f"answers {error.code}"
    except (OSError, ValueError) as error:
        return f"does not answer: {' '.join(str(getattr(error, 'reason', error)).split())}"


def without_secrets(uri: str) -> str:
    """Without the user and password that an address may hold."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
