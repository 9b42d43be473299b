#!/usr/bin/env python3
"""Build the container images, each after those it stands on: `python3 docker/build.py [IMAGE ...]`.

The order is read from the Dockerfiles (`FROM ${REPOSITORY}/<image>:${TAG}`). Needs Docker with BuildKit and nothing
from outside the standard library; arguments after `--` go to every `docker build`.
"""

import argparse
import graphlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
PARENT = re.compile(r"^FROM \$\{REPOSITORY\}/(\w+):\$\{TAG\}", re.MULTILINE)


def images() -> dict[str, set[str]]:
    """Every image and the images that its Dockerfile builds upon."""
    files = sorted(FOLDER.glob("*.Dockerfile"))
    return {file.name.removesuffix(".Dockerfile"): set(PARENT.findall(file.read_text("utf-8"))) for file in files}


def build_order(wanted: list[str]) -> list[str]:
    """`wanted` (all, when empty) and everything below, parents first. Exits when a name is unknown."""
    graph = images()
    unknown = sorted(set(wanted) - set(graph))
    if unknown:
        sys.exit(f"no image is called {unknown[0]!r}; there are {', '.join(graph)}")
    needed: set[str] = set()
    waiting = list(wanted or graph)
    while waiting:
        image = waiting.pop()
        needed.add(image)
        waiting += graph[image] - needed
    return list(graphlib.TopologicalSorter({image: graph[image] for image in sorted(needed)}).static_order())


def docker_client() -> str:
    """The first docker on PATH that can drive BuildKit: newer ones without the buildx plugin cannot."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    for client in dict.fromkeys(filter(None, (shutil.which("docker", path=folder) for folder in folders))):
        if subprocess.run([client, "build", "--help"], env=_environment(), capture_output=True).returncode == 0:
            return client
    sys.exit("no docker on PATH can build with BuildKit: install Docker and its buildx plugin")


def version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "burnish/__init__.py").read_text("utf-8"), re.MULTILINE)
    assert found
    return found[1]


def revision() -> str:
    """The commit the images are made from, marked when what goes into them has changed since."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git(
            "status", "--porcelain", "--", "burnish", "sandbox", "components", "pipelines", "docker", "constraints.txt"
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


def created() -> int:
    """When the images are said to be made, in seconds since 1970: SOURCE_DATE_EPOCH, the commit's time, or now."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return int(given or _git("log", "-1", "--format=%ct"))
    except (OSError, subprocess.CalledProcessError):
        return int(time.time())
    except ValueError:
        sys.exit(f"SOURCE_DATE_EPOCH is {given!r}; give whole seconds since 1970")


@contextmanager
def build_context(image: str, wheels: list[Path]) -> Iterator[Path]:
    """The folder a build may read: the repository, or for `wheels` its recipe beside the wheels from this machine."""
    if image != "wheels":
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="burnish-wheels-") as name:
        context = Path(name)
        for script in ("apt.sh", "install.sh"):
            shutil.copy(FOLDER / script, context)
        for folder in ("requirements", "wheels"):
            (context / folder).mkdir()
        shutil.copy(FOLDER / "requirements/sdists.txt", context / "requirements")
        for wheel in wheels:
            shutil.copy2(wheel, context / "wheels")
        yield context


def local_wheels(folder: str, accelerator: str) -> list[Path]:
    """Wheels in `folder` of versions that the images use; a CPU build of torch only where it is asked for."""
    pins = {
        line.strip().lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    }
    chosen = []
    for wheel in sorted(Path(folder).glob("*.whl")) if folder else []:
        name, _, rest = wheel.name.partition("-")
        number, plus, _ = rest.partition("-")[0].partition("+")
        if f"{name}=={number}".lower().replace("_", "-") in pins and not (plus and accelerator == "cuda"):
            chosen.append(wheel)
    return chosen


def secrets() -> list[str]:
    """The machine's certificates and pip settings, for the length of a build: they enter no layer."""
    certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    settings = os.environ.get("PIP_CONFIG_FILE")
    given = {"ca": certificates, "pip": settings}
    return [f"--secret=id={name},src={path}" for name, path in given.items() if path and os.path.isfile(path)]


def pushed_digest(docker: str, repository: str, name: str) -> str:
    """`repository@sha256:...` of an image that was pushed: what a placement or the chart's values can name it by."""
    known = subprocess.check_output([docker, "image", "inspect", "--format={{json .RepoDigests}}", name], text=True)
    return next(digest for digest in json.loads(known) if digest.startswith(f"{repository}@"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="default: all")
    parser.add_argument("--repository", default="burnish", help="what precedes /<image> (default: %(default)s)")
    parser.add_argument("--tag", help="default: the version, with -cuda behind it for --accelerator cuda")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu", help="of the torch images")
    parser.add_argument("--base", help="Python image to stand on (default: the one named in base.Dockerfile)")
    parser.add_argument("--wheels", default=os.environ.get("PIP_FIND_LINKS", ""), help="folder of wheels to prefer")
    parser.add_argument("--source", default="", help="address of the source code, for the images' labels")
    parser.add_argument("--push", action="store_true", help="push each stage image once it is built")
    parser.add_argument("--list", action="store_true", help="print the images in build order and stop")
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    options, passed = parser.parse_args(given[:split]), given[split + 1 :]
    order = build_order(options.images)
    if options.list:
        print("\n".join(order))
        return

    docker = docker_client()
    tag = options.tag or version() + ("-cuda" if options.accelerator == "cuda" else "")
    arguments = {
        "REPOSITORY": options.repository,
        "TAG": tag,
        "ACCELERATOR": options.accelerator,
        "VERSION": version(),
        "REVISION": revision(),
        "CREATED": datetime.fromtimestamp(created(), UTC).isoformat(),
        "SOURCE": options.source,
    } | ({"BASE": options.base} if options.base else {})
    wheels = local_wheels(options.wheels, options.accelerator)
    for image in order:
        text = (FOLDER / f"{image}.Dockerfile").read_text("utf-8")
        name = f"{options.repository}/{image}:{tag}"
        started = time.monotonic()
        with build_context(image, wheels) as context:
            command = [docker, "build", f"--file={FOLDER / image}.Dockerfile", f"--tag={name}", *secrets()]
            # Docker warns about arguments that a Dockerfile does not declare.
            command += [f"--build-arg={key}={value}" for key, value in arguments.items() if f"ARG {key}" in text]
            if subprocess.run([*command, *passed, str(context)], env=_environment()).returncode:
                sys.exit(f"{name}: the build failed")
        size = int(subprocess.check_output([docker, "image", "inspect", "--format={{.Size}}", name]))
        print(f"{name}: {size / 1e6:.0f} MB, {time.monotonic() - started:.0f} s", flush=True)
        if options.push and "org.opencontainers.image.version" in text:
            subprocess.run([docker, "push", name], check=True)
            print(pushed_digest(docker, f"{options.repository}/{image}", name), flush=True)


def _environment() -> dict[str, str]:
    """For a Docker client; buildx takes the time from it that the image's configuration names."""
    return os.environ | {"DOCKER_BUILDKIT": "1", "SOURCE_DATE_EPOCH": str(created())}


def _git(*arguments: str) -> str:
    return subprocess.check_output(["git", "-C", str(ROOT), *arguments], text=True, stderr=subprocess.DEVNULL).strip()


if __name__ == "__main__":
    main()
