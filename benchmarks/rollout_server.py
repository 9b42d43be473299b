"""A round's rollout from an engine of the stage's own and from the warm rollout server, turn about in one run.

Both sides are a process that imports, gets the next policy, and draws; that of the stage starts its engine, that of the
server asks for new weights in place. `python benchmarks/rollout_server.py --engine vllm` prints seconds and the ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from burnish.contracts.artifacts import Lineage
from burnish.contracts.config import ModelConfig
from burnish.contracts.sampling import EndpointConfig, RolloutConfig
from burnish.models.char import make_char_model
from burnish.models.engine import Request, Sampling, open_engine
from burnish.models.load import load_trainable
from burnish.models.parallel import ParallelPolicy, Ranks
from burnish.stages.sft_batches import Example
from burnish.store.artifacts import ArtifactStore
from burnish.store.cache import BlobCache
from burnish.store.folder import FolderBackend

CPU = torch.device("cpu")
SIDES = ("stage", "server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("hf", "vllm"), default="vllm")
    parser.add_argument("--turns", type=int, default=3, help="rollouts of each side")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32, help="longest completion")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(draw(json.loads(given.side), given), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="burnish-bench-") as folder:
        compare(Path(folder), given)


def compare(folder: Path, given: argparse.Namespace) -> None:
    policies = make_policies(folder, given.turns + 1)
    server, url = start_server(folder, given.engine)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    try:
        # The first policy is what a server has when the first round is over.
        one_side({"digest": policies[0][1], "url": url}, given)
        for place, digest in policies[1:]:
            for side in SIDES:
                asked = {"folder": str(place)} if side == "stage" else {"digest": digest, "url": url}
                seconds[side].append(one_side(asked, given))
    finally:
        server.terminate()
        server.wait()
    for side in SIDES:
        each = " ".join(f"{one:.1f}" for one in seconds[side])
        print(f"{side:8} median {statistics.median(seconds[side]):6.2f} s   ({each})")
    ratio = statistics.median(seconds["stage"]) / statistics.median(seconds["server"])
    print(f"an engine of the stage's own takes {ratio:.1f} times as long ({given.engine}, {os.cpu_count()} cores)")


def make_policies(folder: Path, count: int) -> list[tuple[Path, str]]:
    """Folder and digest of policies that follow each other as if by updates, in the store under `folder`."""
    store = ArtifactStore(FolderBackend(folder / "store"), BlobCache(folder / "cache" / "blobs"))
    place = make_char_model(folder / "base", layers=2, width=64, seed=0)
    examples = [Example([3 + i, 14, 15, 9], [26, 5, 35 + i, 1]) for i in range(6)]
    found = []
    for version in range(count):
        model, tokenizer, _ = load_trainable(place, ModelConfig(path="char"), device="cpu", seed=0)
        policy = ParallelPolicy(model, Ranks(), device=CPU, dtype=torch.float32)
        policy.take_probe(examples)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(version))
        source, place = place, folder / f"policy-{version}"
        place.mkdir()
        policy.save(place, tokenizer, source=source, trust_remote_code=False)
        manifest = store.put_artifact(
            "policy", place, lineage=Lineage(stage="update"), counts={}, metadata={"policy_version": version}
        )
        found.append((place, manifest.digest))
    return found


def start_server(folder: Path, engine: str) -> tuple["subprocess.Popen[str]", str]:
    environment = {**os.environ, "BURNISH_STORE": str(folder / "store"), "BURNISH_CACHE": str(folder / "server")}
    command = [sys.executable, "-m", "burnish.cli.main", "serve", "--engine", engine, "--device", "cpu", "--port", "0"]
    command += ["--max-length", "128", "--threads", "1"]
    log = open(folder / "server.log", "w+")  # noqa: SIM115
    server = subprocess.Popen(command, env=environment, stderr=log, stdout=log, text=True)
    while server.poll() is None:
        for line in (folder / "server.log").read_text().splitlines():
            if line.startswith("{") and json.loads(line)["event"] == "listening":
                return server, f"http://127.0.0.1:{json.loads(line)['port']}"
        time.sleep(0.2)
    raise SystemExit((folder / "server.log").read_text())


def one_side(asked: dict[str, str], given: argparse.Namespace) -> float:
    """Seconds of one process from its start to its end."""
    command = [sys.executable, __file__, "--side", json.dumps(asked), "--engine", given.engine]
    command += ["--samples", str(given.samples), "--tokens", str(given.tokens)]
    started = time.perf_counter()
    drawn = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    assert int(drawn.split()[-1]) == given.samples
    return time.perf_counter() - started


def draw(asked: dict[str, str], given: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    if "url" in asked:
        rollout = RolloutConfig(engine="endpoint", endpoint=EndpointConfig(url=asked["url"]))
    else:
        rollout = RolloutConfig(engine=given.engine)
    engine = open_engine(
        Path(asked.get("folder", "")), model=ModelConfig(dtype="float32"), rollout=rollout, device=CPU, max_length=128,
        digest=asked.get("digest", ""), label="benchmark",
    )  # fmt: skip
    requests = [Request(str(index), [3 + index % 8, 14, 15, 9], index) for index in range(given.samples)]
    return len(list(engine.generate(requests, Sampling(1.0, given.tokens))))


if __name__ == "__main__":
    main()
