"""`burnish doctor`: is everything that a run needs here and working? Each failure names its fix.

With --cluster it asks this of a cluster (doctor_cluster); with --run it looks at a run instead (doctor_run).
"""

import argparse
import importlib.metadata
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

from burnish.cli.compile import add_cluster_arguments
from burnish.cli.finding import Finding, print_findings
from burnish.cli.home import Home
from burnish.cli.kfp_client import add_kfp_arguments, connect, explained
from burnish.cli.settings import add_config_arguments, config_of
from burnish.contracts.artifacts import Lineage
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import BurnishError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("doctor", help="check what a run needs here, or say why a run does not learn")
    add_config_arguments(parser)
    parser.add_argument("--home", help="folder of local runs (default: $BURNISH_HOME or ./.burnish)")
    add_kfp_arguments(parser, "also check this KFP API (default: $KFP_HOST)")
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="instead, check the cluster of this pod or of the kubeconfig, for runs with this configuration",
    )
    parser.add_argument(
        "--pod",
        action="store_true",
        help="with --cluster: print a pod that does this inside of the cluster, for `kubectl create -f -`",
    )
    parser.add_argument(
        "--service-account",
        help="with --cluster: whose rights to check (default: in a pod its own, else KFP's for runs)",
    )
    add_cluster_arguments(parser)
    parser.add_argument(
        "--run", nargs="?", const="latest", metavar="RUN_ID",
        help="instead, name the likely causes of a run's trouble and what to change (default: the latest run)",
    )  # fmt: skip
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    home = Home.default(given.home)
    if given.run:
        from burnish.cli.doctor_run import diagnose_run

        return diagnose_run(home, None if given.run == "latest" else given.run)
    config = config_of(given)
    if given.pod:
        from burnish.cli.doctor_pod import doctor_pod

        print(yaml.safe_dump(doctor_pod(given, config), sort_keys=False), end="")
        return 0
    if given.cluster:
        from burnish.cli.doctor_cluster import check_cluster

        return print_findings(check_cluster(given, config))
    checks: tuple[Callable[[], Finding], ...] = (
        lambda: check_store(home),
        lambda: check_mlflow(home),
        lambda: check_model(config),
        check_sandbox,
        lambda: check_kfp(given.host, given.namespace, given.token_file),
    )
    return print_findings(check() for check in checks)


def check_store(home: Home) -> Finding:
    """Write an artifact and read it back, in the configured store or in the embedded one."""
    from burnish.store import open_store
    from burnish.store.seaweed import start_seaweed

    def probe(where: str) -> Finding:
        store = open_store()
        with tempfile.TemporaryDirectory(prefix="burnish-doctor-") as folder:
            (Path(folder) / "probe.txt").write_text("burnish doctor", "utf-8")
            lineage = Lineage(stage="doctor")
            manifest = store.put_artifact("report", Path(folder), lineage=lineage, counts={}, metadata={})
            store.fetch(store.get_manifest(manifest.digest), Path(folder) / "back")
        return Finding("store", f"{where}: wrote and read an artifact")

    try:
        if os.environ.get("BURNISH_STORE"):
            return probe(os.environ["BURNISH_STORE"])
        with home.lock(), start_seaweed(home.root) as environment:
            os.environ.update(environment)
            try:
                return probe("embedded SeaweedFS")
            finally:
                for name in environment:
                    del os.environ[name]
    except BurnishError as error:
        return Finding("store", str(error), "set BURNISH_STORE, BURNISH_S3_ENDPOINT and AWS_*, or unset them all")


def check_mlflow(home: Home) -> Finding:
    """Ask the configured server for its health, or see that one could be started here."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri:
        import urllib.error
        import urllib.request

        try:
            with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=5) as response:
                return Finding("mlflow", f"{uri} answers {response.status}")
        except (urllib.error.URLError, OSError, ValueError) as error:
            return Finding(
                "mlflow", f"{uri} does not answer: {error}", "start the server, or unset MLFLOW_TRACKING_URI"
            )
    return _package("mlflow", "mlflow", f"a run starts one on {home.root / 'mlflow.db'}", "track")


def check_model(config: RunConfig) -> Finding:
    """Find the base model, fetching or converting it if need be."""
    try:
        from burnish.models.load import resolve_base_model

        with tempfile.TemporaryDirectory(prefix="burnish-doctor-") as scratch:
            folder = resolve_base_model(config.model, seed=config.seed, scratch=Path(scratch))
    except ImportError as error:
        return Finding("model", f"cannot look: {error}", "pip install 'burnish[train]'")
    except BurnishError as error:
        return Finding("model", str(error), "set model.path to a packaged name, a Hugging Face id or a local folder")
    return Finding("model", f"{config.model.path}: {folder if config.model.path != 'char' else 'made when needed'}")


def check_sandbox() -> Finding:
    """Run a program in the sandbox, and one that tries to leave it."""
    from sandbox.limits import Limits
    from sandbox.process import SandboxUnavailable
    from sandbox.spec import CallTest, Spec
    from sandbox.verdicts import run_tests

    code = "def add(a, b):\n    return a + b\ndef leave(path):\n    return open(path).read()[:1]"
    inside = Spec((CallTest([3, 4], {}, 7),), "add")
    outside = Spec((CallTest([str(Path(__file__))], {}, '"'),), "leave")
    try:
        works, leaves = run_tests(code, inside, Limits()), run_tests(code, outside, Limits())
    except SandboxUnavailable as error:
        return Finding(
            "sandbox", str(error), "run on a kernel with Landlock and seccomp, or set execute.allow_degraded"
        )
    if works.verdicts != ("passed",):
        return Finding(
            "sandbox", f"a correct program got {works.verdicts[0]}: {works.stderr}", "report this as a fault"
        )
    if leaves.verdicts == ("passed",):
        return Finding("sandbox", "a program read a file outside its jail", "do not run model-written code here")
    return Finding("sandbox", f"runs code in {works.seconds * 1000:.0f} ms and keeps it from reading files outside")


def check_kfp(host: str | None, namespace: str | None, token_file: str | None) -> Finding:
    """The local runner's package, and the API when a host is given."""
    if not host:
        return _package("kfp", "kfp", "runs locally; give --host to check a cluster", "kfp")
    try:
        with explained(host):
            health = connect(host, namespace, token_file).get_kfp_healthz()
    except BurnishError as error:
        return Finding("kfp", str(error), "give the API's address with --host, and a token that it takes")
    return Finding("kfp", f"{host}: multi-user {bool(health.multi_user)}; --cluster checks the rest")


def _package(subject: str, package: str, detail: str, extra: str) -> Finding:
    try:
        return Finding(subject, f"{package} {importlib.metadata.version(package)}: {detail}")
    except importlib.metadata.PackageNotFoundError:
        return Finding(subject, f"package {package} is not installed", f"pip install 'burnish[{extra}]'")
