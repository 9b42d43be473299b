"""What the tests of the chart share: the helm program, and the chart rendered with several sets of values."""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rendered_chart import CHART, VALUE_SETS, HelmError, Object


@pytest.fixture(scope="session")
def helm() -> Callable[..., str]:
    """Runs helm and gives its output; raises HelmError."""
    beside = Path(sys.executable).with_name("helm")
    program = os.environ.get("HELM") or (str(beside) if beside.exists() else shutil.which("helm"))
    if not program:
        pytest.skip(f"helm is not installed: python3 helm/get_helm.py {beside}, or set HELM")

    def run(*arguments: str) -> str:
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise HelmError(done.stdout + done.stderr)
        return done.stdout

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., str]) -> Callable[..., list[Object]]:
    """The objects that the chart makes from a set of values; further words go to `helm template`."""

    @functools.cache
    def rendered(name: str = "defaults", *arguments: str) -> list[Object]:
        file = VALUE_SETS[name]
        chosen = [f"--values={file}"] if file else []
        text = helm("template", "burnish", str(CHART), "--namespace=runs", *chosen, *arguments)
        return [found for found in yaml.safe_load_all(text) if found]

    return rendered


@pytest.fixture(params=VALUE_SETS)
def objects(request: pytest.FixtureRequest, render: Callable[..., list[Object]]) -> list[Object]:
    """Everything rendered, once for each set of values."""
    return render(request.param)
